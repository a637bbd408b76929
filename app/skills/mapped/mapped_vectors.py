"""Nearest-neighbor search over vectors in files: exact for up to `EXACT` of them, nearly exact above.

Above, FAISS keeps 8 bits of each number in cells (IVF). It scans the cells nearest to the query for candidates,
whose cosines are then computed with 4 more bits: 8 alone confuse neighbors of almost equal cosine.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from app.engine.protocol import Vector
from app.skills.mapped.ngram_bitmaps import Bits, Rows
from app.skills.mapped.string_table import map_array, save_array

EXACT = 50_000  # vectors that are all compared, in about 5 ms
_CELLS = 2  # times the square root of the number of vectors
_PROBES = 32
_TRAINED_ON = 64  # vectors per cell
_ROUNDS = 5  # of k-means
_MARGIN = 0.2  # of the range of the training sample's numbers, for those of others that lie outside
_CANDIDATES = 4  # times the number of results
_BATCH = 16_384
_FINE = 16  # parts of a quantization step that 4 bits distinguish

Cosines = NDArray[np.float32]  # (K,)
Matrix = NDArray[np.float32]  # (N, D)


class MappedVectors:
    """Vectors by row; not every row has one. Cosines are rounded to 6 digits, so that equal vectors are equal."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises OSError, ValueError and RuntimeError for files that `write_vectors` did not leave."""
        file = directory / f"{name}.faiss"
        self._is_exact = not (directory / f"{name}_fine.npy").exists()
        flag = faiss.IO_FLAG_MMAP_IFC if self._is_exact else faiss.IO_FLAG_MMAP
        self._index: Any = faiss.read_index(str(file), flag | faiss.IO_FLAG_READ_ONLY)
        self.dimension = int(self._index.d)
        if not self._is_exact:
            self._fine = map_array(directory, f"{name}_fine")  # (R, D / 2)
            self._steps = _steps(self._index)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, query: Vector, limit: int, visible: Bits) -> tuple[Rows, Cosines]:
        """The visible rows with the nearest vectors, best first, at most `limit`."""
        selector = faiss.IDSelectorBitmap(visible.nbytes, faiss.swig_ptr(visible.view(np.uint8)))
        asked = query[None].astype(np.float32)  # (1, D)
        settings: Any  # FAISS's types lack the arguments
        if self._is_exact:
            settings = faiss.SearchParameters()
            settings.sel = selector
            cosines, rows = self._index.search(asked, limit, params=settings)
        else:
            settings = faiss.SearchParametersIVF()
            settings.sel, settings.nprobe = selector, _PROBES
            cosines, rows = self._index.search(asked, _CANDIDATES * limit, params=settings)
            cosines = cosines + self._rest(rows[0], asked[0])
        kept = rows[0] >= 0  # -1: fewer vectors than requested
        found: Rows = rows[0][kept]
        rounded = np.round(cosines[0][kept], 6)
        order = np.argsort(-rounded, kind="stable")[:limit]
        return found[order], rounded[order]

    def _rest(self, rows: Rows, query: Vector) -> Cosines:
        """(K,) what the last 4 bits add to the cosines."""
        packed = self._fine[np.maximum(rows, 0)]  # (K, D / 2)
        levels = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(rows), -1)[:, : self.dimension]
        scaled = self._steps * query
        rest: Cosines = (levels @ scaled + (0.5 - _FINE / 2) * scaled.sum()) / _FINE
        return rest


def write_vectors(directory: Path, name: str, vectors: Matrix, rows: Rows, *, exact: int = EXACT) -> None:
    """`vectors` (N, D) may be a mapped file: it is read in parts. `rows` (N,) are the row of each."""
    is_exact = len(vectors) <= exact
    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1])) if is_exact else _trained(vectors)
    fine = None if is_exact else np.zeros((int(rows.max()) + 1, (vectors.shape[1] + 1) // 2), np.uint8)
    for start in range(0, len(vectors), _BATCH):
        part, numbers = np.array(vectors[start : start + _BATCH]), rows[start : start + _BATCH]
        if fine is None:
            index.add_with_ids(part, numbers)
        else:
            codes = index.sa_encode(part)
            index.add_sa_codes(codes, numbers)
            fine[numbers] = _packed_rest(part - index.sa_decode(codes), _steps(index))
    faiss.write_index(index, str(directory / f"{name}.faiss"))
    if fine is not None:
        save_array(directory, f"{name}_fine", fine)


def _trained(vectors: Matrix) -> Any:
    dimension, cells = vectors.shape[1], int(_CELLS * len(vectors) ** 0.5)
    centers: Any = faiss.IndexFlatIP(dimension)
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexIVFScalarQuantizer(centers, dimension, cells, kind, faiss.METRIC_INNER_PRODUCT)
    index.sq.rangestat_arg = _MARGIN
    index.cp.niter = _ROUNDS
    index.cp.max_points_per_centroid = _TRAINED_ON
    sample = np.random.default_rng(0).choice(len(vectors), min(len(vectors), cells * _TRAINED_ON), replace=False)
    index.train(np.array(vectors[np.sort(sample)]))
    centers.this.disown()
    index.own_fields = True
    return index


def _steps(index: Any) -> NDArray[np.float32]:
    """(D,) the size of a quantization step."""
    trained = faiss.vector_to_array(index.sq.trained)  # (2 D,): the least, and the range
    steps: NDArray[np.float32] = (trained[index.d :] / 255).astype(np.float32)
    return steps


def _packed_rest(rest: Matrix, steps: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(N, D / 2): 4 bits for each number of what 8 bits leave of a vector."""
    levels = np.floor((rest / np.maximum(steps, np.finfo(np.float32).tiny) + 0.5) * _FINE)
    levels = np.clip(levels, 0, _FINE - 1).astype(np.uint8)
    if levels.shape[1] % 2:
        levels = np.pad(levels, ((0, 0), (0, 1)))
    packed: NDArray[np.uint8] = levels[:, ::2] | levels[:, 1::2] << 4
    return packed
