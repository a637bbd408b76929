"""Updates: the right gradient however it is divided, exact after an interruption, loud when it fails."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from app.base.errors import InvalidError, ModelMemoryError, StorageError
from app.base.run_settings import RunSettings
from app.engine.adapter_files import WEIGHTS
from tests.support.distributed_process import SETTINGS, new_learner, round_of
from tests.support.small_disk import small_disk
from tests.support.synced_paths import synced_paths
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import advantaged, rollout, sample_of, trajectory
from trainer.learning import distributed
from trainer.learning.adapter import with_lora
from trainer.learning.batch import pad
from trainer.learning.learner import Checkpoints, Learner
from trainer.learning.model import load_model
from trainer.sage.advantages import AdvantagedRollout

PLAIN = msgspec.structs.replace(SETTINGS, kl=0.0)


@pytest.fixture(autouse=True)
def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are compared as they are."""
    monkeypatch.setattr(distributed, "GRAD_CLIP", 1e9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def weights(learner: Learner) -> dict[str, Tensor]:
    found: dict[str, Tensor] = learner.state()["weights"]
    return found


def same(one: Learner, other: Learner) -> bool:
    theirs = weights(other)
    return all(torch.equal(each, theirs[name]) for name, each in weights(one).items())


def first_gradient(learner: Learner, rollouts: list[AdvantagedRollout]) -> Tensor:
    """Of all LoRA weights: Adam's first moment holds a tenth of it after one step."""
    assert learner.update(rollouts) is not None
    moments = learner.state()["moments"]
    return torch.cat([moments[name]["exp_avg"].flatten() * 10 for name in sorted(moments)])


def settings(**changes: object) -> RunSettings:
    return msgspec.structs.replace(PLAIN, **changes)


def resampled(learner: Learner, rollouts: list[AdvantagedRollout]) -> list[AdvantagedRollout]:
    """The same rollouts with the logprobs of the learner's present policy."""
    fresh = []
    for each in rollouts:
        trajectory = each.rollout.trajectory
        with torch.no_grad():
            now = iter(learner.token_logprobs(pad([sample_of(trajectory)])).tolist())
        fresh.append(logged(each, [[next(now) for _ in turn.logprobs] for turn in trajectory.turns]))
    return fresh


def logged(each: AdvantagedRollout, logprobs: list[list[float]]) -> AdvantagedRollout:
    """The same rollout with other logprobs, turn by turn."""
    pairs = zip(each.rollout.trajectory.turns, logprobs, strict=True)
    turns = tuple(msgspec.structs.replace(turn, logprobs=tuple(values)) for turn, values in pairs)
    trajectory = msgspec.structs.replace(each.rollout.trajectory, turns=turns)
    return msgspec.structs.replace(each, rollout=msgspec.structs.replace(each.rollout, trajectory=trajectory))


def test_on_fresh_samples_the_gradient_is_that_of_plain_reinforce(model: Path) -> None:
    """Against the model's own forward pass, one trajectory at a time: not packed, padded, fused or clipped."""
    learner = new_learner(model, PLAIN)
    rollouts = resampled(learner, round_of(1))
    policy = with_lora(load_model(model, torch.device("cpu")), 4, 8)
    loss = torch.zeros(())
    for each in rollouts:
        sample = sample_of(each.rollout.trajectory)
        logprobs = policy(input_ids=torch.tensor([sample.ids])).logits[0].log_softmax(-1)
        places = [place for place, sampled in enumerate(sample.sampled) if sampled]
        chosen = torch.stack([logprobs[place - 1, sample.ids[place]] for place in places])
        loss = loss - each.advantage * chosen.mean() / each.group_size
    loss.backward()
    by_hand = {name: each.grad for name, each in policy.named_parameters() if each.grad is not None}
    expected = torch.cat([by_hand[name].flatten() for name in sorted(by_hand)])
    torch.testing.assert_close(first_gradient(learner, rollouts), expected, atol=1e-6, rtol=1e-4)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("changes", [{"micro_batch_tokens": 32}, {"gradient_checkpointing": True}])
def test_the_gradient_does_not_depend_on_how_it_is_computed(model: Path, changes: dict[str, object]) -> None:
    """In many micro-batches or one; with activations kept or recomputed."""
    rollouts = round_of(2)
    expected = first_gradient(new_learner(model, settings(micro_batch_tokens=100_000)), rollouts)
    found = first_gradient(new_learner(model, settings(**changes)), rollouts)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_gradient_checkpointing_keeps_fewer_activations(model: Path) -> None:
    kept: list[int] = []
    for frugal in (False, True):
        learner = new_learner(model, settings(gradient_checkpointing=frugal))
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            learner.token_logprobs(pad([sample_of(rollout(1))]))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_good_rollouts_become_likelier_and_bad_ones_less_likely(model: Path) -> None:
    learner = new_learner(model, settings(lr=5e-3))
    good, bad = rollout(1), rollout(2)
    before, was_bad = (learner.token_logprobs(pad([sample_of(each)])).sum().item() for each in (good, bad))
    for _ in range(5):
        learner.update(resampled(learner, [advantaged(good, 1.0), advantaged(bad, -1.0)]))
    after, is_bad = (learner.token_logprobs(pad([sample_of(each)])).sum().item() for each in (good, bad))
    assert after > before + 1
    assert is_bad < was_bad - 1


def test_rollouts_without_a_signal_change_nothing(model: Path) -> None:
    learner, untouched = new_learner(model), new_learner(model)
    assert learner.update([advantaged(rollout(1), 0.0), advantaged(rollout(2), 0.005)]) is None
    assert same(learner, untouched)
    assert learner.steps == 0


def test_a_flawed_rollout_does_not_keep_the_others_from_being_learned_from(model: Path) -> None:
    learner, plain = new_learner(model), new_learner(model)
    empty = trajectory(seed=8)
    stats = learner.update([*round_of(1), advantaged(empty, -0.5, size=4)])
    assert stats == plain.update(round_of(1))
    assert same(learner, plain)


def test_statistics_of_a_first_fresh_step(model: Path) -> None:
    """Before any change: ratio 1, no divergence from engine or start, nothing clipped."""
    learner = new_learner(model, PLAIN)
    rollouts = resampled(learner, round_of(3))
    stats = learner.update(rollouts)
    assert stats is not None
    assert stats.ratio_mean == pytest.approx(1, abs=1e-4)
    assert stats.ratio_max == pytest.approx(1, abs=1e-3)
    assert stats.kl_to_engine == pytest.approx(0, abs=1e-6)
    assert stats.kl_to_start == pytest.approx(0, abs=1e-6)
    assert stats.clip_fraction == 0
    logprobs = [value for each in rollouts for turn in each.rollout.trajectory.turns for value in turn.logprobs]
    assert stats.entropy == pytest.approx(-sum(logprobs) / len(logprobs), abs=1e-4)
    assert stats.samples == 7
    assert stats.tokens == sum(each.rollout.trajectory.generated_tokens for each in rollouts)
    assert stats.read_tokens == sum(len(sample_of(each.rollout.trajectory).ids) for each in rollouts)
    assert stats.loss == pytest.approx(-sum(each.advantage for each in rollouts) / 4, abs=1e-5)
    assert stats.grad_norm > 0


def test_divergence_from_the_engine_and_from_the_start_is_measured(model: Path) -> None:
    learner = new_learner(model, settings(lr=1e-2))
    rollouts = resampled(learner, round_of(3))
    learner.update(rollouts)
    stats = learner.update(rollouts)
    assert stats is not None
    assert stats.kl_to_engine > 1e-3
    assert stats.kl_to_start == pytest.approx(stats.kl_to_engine, rel=0.9)  # of fewer trajectories
    assert stats.ratio_max > 1.05


def test_the_clip_limits_several_epochs(model: Path) -> None:
    learner = new_learner(model, settings(lr=1e-2, epochs=6, clip_low=0.02, clip_high=0.02))
    stats = learner.update(resampled(learner, round_of(4)))
    assert learner.steps == 6
    assert stats is not None
    assert stats.clip_fraction > 0.3
    assert stats.ratio_mean == pytest.approx(1, abs=1e-3)  # of before the first


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_clip_limits_several_steps_on_samples_of_a_release(model: Path, staleness: int) -> None:
    """Of the one that a run starts from, or of one before it: never of a step before."""
    learner = new_learner(model, settings(lr=1e-2, clip_low=0.02, clip_high=0.02))
    logged = [
        advantaged(each.rollout.trajectory, each.advantage, staleness=staleness)
        for each in resampled(learner, round_of(4))
    ]
    fractions = []
    for _ in range(6):
        stats = learner.update(logged)
        assert stats is not None
        fractions.append(stats.clip_fraction)
    assert fractions[0] == 0
    assert fractions[-1] > 0.3


def test_a_penalty_keeps_the_policy_near_its_start(model: Path) -> None:
    distances = []
    for kl in (0.0, 10.0):
        learner = new_learner(model, settings(lr=5e-3, kl=kl))
        for _ in range(6):
            stats = learner.update(resampled(learner, round_of(5)))
        assert stats is not None
        distances.append(stats.kl_to_start)
    assert distances[1] < distances[0] / 2


def test_a_stale_sample_counts_as_much_as_its_truncated_weight(model: Path) -> None:
    """Sampled by a policy that gave it 10 times the probability, or a tenth: weights 0.1 and, truncated, 2."""
    learner = new_learner(model, PLAIN)
    (fresh,) = resampled(learner, [advantaged(rollout(1, turns=1), 1.0)])
    expected = first_gradient(learner, [fresh])
    (turn,) = fresh.rollout.trajectory.turns
    for shift, weight in ((2.302585, 0.1), (-2.302585, 2.0)):
        old = logged(fresh, [[each + shift for each in turn.logprobs]]).rollout.trajectory
        found = first_gradient(new_learner(model, PLAIN), [advantaged(old, 1.0, staleness=1)])
        torch.testing.assert_close(found, weight * expected, atol=1e-6, rtol=1e-3)


def test_a_killed_and_resumed_run_ends_with_the_same_weights(model: Path, tmp_path: Path) -> None:
    straight, killed = new_learner(model), new_learner(model)
    for number in range(4):
        expected = straight.update(round_of(number))
    for number in range(2):
        killed.update(round_of(number))
    killed.save(tmp_path / "it.checkpoint")
    killed.update(round_of(2))  # and now the power fails
    resumed = new_learner(model, msgspec.structs.replace(SETTINGS, seed=9))
    resumed.restore(tmp_path / "it.checkpoint")
    assert resumed.steps == 2
    for number in range(2, 4):
        stats = resumed.update(round_of(number))
    assert same(straight, resumed)
    assert stats == expected
    begun, now = straight.state()["start"], resumed.state()["start"]  # of the run, not of the attempt
    assert all(torch.equal(each, now[name]) for name, each in begun.items())


def test_a_checkpoint_is_on_the_disk_before_the_one_before_is_deleted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure would leave an empty one, and no other."""
    learner, checkpoints, synced = new_learner(model), Checkpoints(tmp_path), synced_paths(monkeypatch)
    checkpoints.save(learner, 1)
    assert [Path(path).name for path in synced] == ["learner-00001.partial", tmp_path.name]
    assert [path.name for path in tmp_path.iterdir()] == ["learner-00001.checkpoint"]


def test_an_adapter_that_a_power_failure_has_damaged_is_published_again(model: Path, tmp_path: Path) -> None:
    learner = new_learner(model)
    made = learner.publish(tmp_path)
    whole = (made.path / WEIGHTS).read_bytes()
    (made.path / WEIGHTS).write_bytes(b"")
    assert learner.publish(tmp_path) == made
    assert (made.path / WEIGHTS).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [made.hash]


@pytest.mark.gpu
def test_a_resumed_run_continues_on_a_gpu(model: Path, tmp_path: Path) -> None:
    learner, resumed = new_learner(model, device="cuda"), new_learner(model, device="cuda")
    learner.update(round_of(1))
    learner.save(tmp_path / "it.checkpoint")
    resumed.restore(tmp_path / "it.checkpoint")
    expected, stats = learner.update(round_of(2)), resumed.update(round_of(2))
    assert expected is not None
    assert stats is not None
    assert stats.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
    theirs = weights(resumed)
    for name, each in weights(learner).items():
        torch.testing.assert_close(theirs[name], each, atol=1e-5, rtol=1e-3)


def test_the_whole_optimizer_state_is_restored_on_the_device_of_the_weights(model: Path, tmp_path: Path) -> None:
    """Its step count, too: its kernels refuse one on another device. Here they are on the device "meta"."""
    learner = new_learner(model)
    learner.update(round_of(1))
    learner.save(tmp_path / "it.checkpoint")
    elsewhere = Learner(with_lora(load_model(model, torch.device("cpu")), 4, 8).to("meta"), SETTINGS)
    assert elsewhere._processes.device.type == "meta"  # not that of the learner before it
    elsewhere.restore(tmp_path / "it.checkpoint")
    states = elsewhere._optimizer.state.values()
    assert states
    assert {(key, each.device.type) for state in states for key, each in state.items()} == {
        ("step", "meta"),
        ("exp_avg", "meta"),
        ("exp_avg_sq", "meta"),
    }


def test_a_checkpoint_of_another_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    new_learner(model).save(tmp_path / "it.checkpoint")
    with pytest.raises(InvalidError, match="another model or rank"):
        new_learner(model, settings(lora_rank=8)).restore(tmp_path / "it.checkpoint")


def test_a_full_disk_leaves_the_previous_checkpoint(model: Path, tmp_path: Path) -> None:
    learner, path = new_learner(model), tmp_path / "it.checkpoint"
    learner.save(path)
    before = path.read_bytes()
    learner.update(round_of(1))
    with small_disk(10_000), pytest.raises(StorageError, match="could not be written"):
        learner.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_gradient_that_is_not_finite_changes_nothing(model: Path) -> None:
    learner = new_learner(model)
    learner.update(round_of(1))
    before = weights(learner)
    broken = rollout(1, logprob=float("nan"))
    with pytest.raises(InvalidError, match="gradient of step 2 is not finite"):
        learner.update([advantaged(broken, 1.0)])
    assert all(torch.equal(each, before[name]) for name, each in weights(learner).items())
    assert learner.steps == 1
    assert learner.update(round_of(2)) is not None  # nothing of it is left


def test_an_update_without_memory_says_what_to_lower(model: Path) -> None:
    def exhaust(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    learner = new_learner(model, PLAIN)
    layer = next(module for name, module in learner.model.named_modules() if name.endswith("layers.0"))
    layer.register_forward_pre_hook(exhaust)
    with pytest.raises(ModelMemoryError, match=r"memory ran out in an update \(CUDA .*: lower micro_batch_tokens"):
        learner.update(round_of(1))
