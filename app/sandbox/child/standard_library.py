"""asyncio, threads and executors on a single thread: everything runs sequentially, one host call at a time."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any


class _NoSelector:
    """Waits for timeouts only."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for another one: this would never end")
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None: ...


class SerialLoop(asyncio.BaseEventLoop):
    """An event loop without files, sockets and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()

    def time(self) -> float:
        return time.monotonic()

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised by awaiting the future
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


class SerialPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = SerialLoop


class SerialExecutor(concurrent.futures.Executor):
    """Replaces both pools: runs each submission immediately."""

    def __init__(
        self, max_workers: int | None = None, *_args: Any, initializer: Any = None, initargs: Any = (), **_kw: Any
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._closed = False
        if initializer is not None:
            initializer(*initargs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised by result(), as in a pool
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the signature of the original
        self._closed = True


def install() -> None:
    """Replace everything that needs a second thread in the modules that the agent's code imports."""
    asyncio.set_event_loop_policy(SerialPolicy())
    for name in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
        setattr(concurrent.futures, name, SerialExecutor)
    for kind, name, method in (
        (threading.Thread, "start", _start),
        (threading.Thread, "join", _join),
        (threading.Thread, "is_alive", _is_alive),
        (threading.Timer, "run", _run_timer),
        (threading.Condition, "wait", _wait),
    ):
        setattr(kind, name, method)


def _start(thread: threading.Thread) -> None:
    """Run the thread to its end."""
    if thread.__dict__.get("_ended") is not None:
        raise RuntimeError("threads can only be started once")
    thread.__dict__["_ended"] = False
    try:
        thread.run()
    except SystemExit:
        pass
    except Exception as error:  # noqa: BLE001 - ends the thread and is printed, as usual
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
    finally:
        thread.__dict__["_ended"] = True


def _join(thread: threading.Thread, timeout: float | None = None) -> None:  # noqa: ARG001 - the signature of the original
    ended = thread.__dict__.get("_ended")
    if ended is None:
        raise RuntimeError("cannot join thread before it is started")
    if not ended:
        raise RuntimeError("cannot join current thread")


def _is_alive(thread: threading.Thread) -> bool:
    return thread.__dict__.get("_ended") is False or thread is threading.main_thread()


def _run_timer(timer: Any) -> None:
    if not timer.finished.is_set():
        time.sleep(timer.interval)
        timer.function(*timer.args, **timer.kwargs)
    timer.finished.set()


def _wait(_condition: threading.Condition, timeout: float | None = None) -> bool:
    if timeout is None:
        raise RuntimeError("nobody is left to wake this wait: threads here run one after another")
    time.sleep(max(0.0, timeout))
    return False
