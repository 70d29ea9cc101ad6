"""Compiling through the cache: in this process, in a pool, and by several processes at once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tileseek.codegen import Cache, CompiledKernel, CompilePool, KernelSource, cache_dir, compile_kernel, compiler
from tileseek.codegen import limits as limits_module
from tileseek.codegen.cache import Entry, content_key
from tileseek.codegen.nvrtc import compiler_version
from tileseek.space import BadInput, Problem, Schedule
from toolchain import BROKEN, ENDLESS, OTHER, OVERFULL, PINGPONG, PROBLEM, SMALL, SPLIT

generate = compiler.generate


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def substitute(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[Schedule, KernelSource | Exception]], None]:
    """Give chosen schedules another source, or a generator that raises."""

    def install(sources: dict[Schedule, KernelSource | Exception]) -> None:
        def chosen(problem: Problem, schedule: Schedule) -> KernelSource:
            source = sources.get(schedule) or generate(problem, schedule)
            if isinstance(source, Exception):
                raise source
            return source

        monkeypatch.setattr(compiler, "generate", chosen)

    return install


def records(cache: Cache) -> list[Path]:
    return sorted(cache.directory.glob("kernels/*/*.json"))


def test_kernel_is_compiled_once_and_then_cached(cache: Cache) -> None:
    first = compile_kernel(PROBLEM, SMALL, cache)
    assert (first.status, first.reason, first.cached) == ("ok", "", False)
    assert first.cubin.startswith(b"\x7fELF") and first.audit is not None and first.audit.problems == ()
    assert compile_kernel(PROBLEM, SMALL, cache) == replace(first, cached=True)
    # Another process with another problem of the kind finds it as well.
    assert compile_kernel(replace(PROBLEM, m=4096), SMALL, Cache(cache.directory)).cached


def test_compiler_version_is_the_full_one() -> None:
    assert compiler_version().startswith("nvrtc 13.") and compiler_version().count(".") == 2


def test_kernel_that_spills_and_serialises_is_rejected_with_the_reasons(cache: Cache) -> None:
    kernel = compile_kernel(PROBLEM, OVERFULL, cache)
    assert (kernel.status, kernel.cubin) == ("audit", b"")
    assert "bytes of spills" in kernel.reason and "C7511" in kernel.reason
    assert kernel.audit is not None and kernel.audit.spill_bytes > 0
    again = compile_kernel(PROBLEM, OVERFULL, cache)
    assert again == replace(kernel, cached=True)


def test_failure_is_remembered_until_the_compiler_changes(
    cache: Cache, substitute: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    substitute({SMALL: BROKEN})
    first = compile_kernel(PROBLEM, SMALL, cache)
    assert first.status == "compile" and "undefined" in first.reason and not first.cached
    assert compile_kernel(PROBLEM, SMALL, cache).cached
    monkeypatch.setattr(compiler, "compiler_version", lambda: "nvrtc 99.0.1")
    assert not compile_kernel(PROBLEM, SMALL, cache).cached


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("compiler_version", lambda: "nvrtc 99.0.1"),
        ("OPTIONS", (*compiler.OPTIONS, "--fmad=false")),
        ("GENERATOR_VERSION", "next"),
        ("AUDIT_VERSION", "next"),
        ("generate", lambda p, s: KernelSource(generate(p, s).text + " ", generate(p, s).entry)),
    ),
)
def test_key_changes_with_everything_that_made_the_kernel(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiler._prepare(PROBLEM, SMALL)
    assert before == compiler._prepare(PROBLEM, SMALL)
    monkeypatch.setattr(compiler, name, value)
    assert compiler._prepare(PROBLEM, SMALL).key != before.key


def test_error_that_says_nothing_about_the_source_is_not_remembered(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("NVRTC_ERROR_OUT_OF_MEMORY")

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile_source", fail)
        kernel = compile_kernel(PROBLEM, SMALL, cache)
    assert kernel.status == "compile" and "NVRTC_ERROR_OUT_OF_MEMORY" in kernel.reason
    assert records(cache) == []
    assert compile_kernel(PROBLEM, SMALL, cache).status == "ok"


# --- the pool ---


def test_pool_compiles_a_source_once_for_all_that_share_it(cache: Cache) -> None:
    launches = [replace(SMALL, swizzle=swizzle) for swizzle in (1, 2, 4)]
    schedules = [launches[0], SPLIT, *launches[1:], PINGPONG]
    done: list[int] = []
    with CompilePool(2, cache=cache) as pool:
        kernels = pool.compile_many([(PROBLEM, s) for s in schedules], lambda index, kernel: done.append(index))
        assert sorted(done) == list(range(len(schedules)))
        assert all(k.status == "ok" and not k.cached for k in kernels)
        assert len({k.key for k in kernels}) == 3 == len(records(cache))
        assert kernels[0] is kernels[2] is kernels[3]
        assert [k.cached for k in pool.compile_many([(PROBLEM, s) for s in schedules])] == [True] * len(schedules)
    # The same kernels as in this process.
    assert compile_kernel(PROBLEM, SPLIT, Cache(cache.directory / "else")).audit == kernels[1].audit


def test_bad_candidates_leave_the_others_alone(cache: Cache, substitute: Callable[..., None]) -> None:
    raises, refused, hangs = (replace(OTHER, stages=stages) for stages in (3, 4, 5))
    substitute({raises: ZeroDivisionError("surprise"), refused: BROKEN, hangs: ENDLESS})
    pairs = [(PROBLEM, s) for s in (raises, refused, hangs, SMALL, OTHER)]
    with CompilePool(2, timeout_s=2.0, cache=cache) as pool:
        kernels = pool.compile_many(pairs)
        assert [k.status for k in kernels] == ["compile", "compile", "timeout", "ok", "ok"]
        assert "ZeroDivisionError: surprise" in kernels[0].reason
        assert kernels[2].reason == "compiling took more than 2 s"
        # The timeout is remembered, for this compiler; the exception is not.
        again = pool.compile_many(pairs)
        assert [k.cached for k in again] == [False, True, True, True, True]
        assert again[2].status == "timeout"


def test_death_of_a_worker_costs_one_kernel(cache: Cache, substitute: Callable[..., None]) -> None:
    substitute({SMALL: ENDLESS})
    with CompilePool(1, cache=cache) as pool:

        def kill_when_compiling() -> None:
            while not (pool._workers and pool._workers[0].compiling):
                time.sleep(0.01)
            os.kill(pool._workers[0]._process.pid, signal.SIGSEGV)

        killer = threading.Thread(target=kill_when_compiling)
        killer.start()
        kernels = pool.compile_many([(PROBLEM, SMALL), (PROBLEM, OTHER)])
        killer.join()
    assert [k.status for k in kernels] == ["compile", "ok"]
    assert f"died with status {-signal.SIGSEGV}" in kernels[0].reason
    assert len(records(cache)) == 1, "who killed the process is not known, so nothing is remembered"


def test_interrupt_ends_the_workers(cache: Cache) -> None:
    def interrupt(index: int, kernel: CompiledKernel) -> None:
        pids.extend(worker._process.pid for worker in pool._workers)
        environments.extend(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids)
        raise KeyboardInterrupt

    pids: list[int] = []
    environments: list[list[bytes]] = []
    with CompilePool(2, cache=cache) as pool, pytest.raises(KeyboardInterrupt):
        pool.compile_many([(PROBLEM, SMALL), (PROBLEM, OTHER), (PROBLEM, SPLIT)], interrupt)
    assert pids and not any(_runs(pid) for pid in pids)
    assert all(b"CUDA_VISIBLE_DEVICES=" in environment for environment in environments)
    with CompilePool(2, cache=cache) as pool:  # what was finished is there
        assert any(k.cached for k in pool.compile_many([(PROBLEM, SMALL), (PROBLEM, OTHER), (PROBLEM, SPLIT)]))


def test_closing_from_another_thread_ends_a_running_call(cache: Cache, substitute: Callable[..., None]) -> None:
    substitute({SMALL: ENDLESS})
    pool = CompilePool(1, cache=cache)
    done: list[int] = []

    def close_when_compiling() -> None:
        while not (pool._workers and pool._workers[0].compiling):
            time.sleep(0.01)
        pool.close()

    closer = threading.Thread(target=close_when_compiling)
    closer.start()
    with pytest.raises(RuntimeError, match="closed"):
        pool.compile_many([(PROBLEM, SMALL), (PROBLEM, OTHER)], lambda index, kernel: done.append(index))
    closer.join()
    assert (done, records(cache), pool._workers) == ([], [], [])
    with pytest.raises(RuntimeError, match="closed"):
        pool.compile_many([(PROBLEM, OTHER)])


_PARENT = """
import sys
from pathlib import Path
from tileseek.codegen import Cache, CompilePool, compiler
from toolchain import ENDLESS, PROBLEM, SMALL
compiler.generate = lambda problem, schedule: ENDLESS
pool = CompilePool(1, cache=Cache(Path(sys.argv[1])))
receive = compiler._Worker.receive
def announce(worker):
    print(worker._process.pid, flush=True)
    return receive(worker)
compiler._Worker.receive = announce
pool.compile_many([(PROBLEM, SMALL)])
"""


def test_killed_parent_leaves_no_process_no_entry_and_no_lock(cache: Cache, substitute: Callable[..., None]) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(cache.directory)], stdout=subprocess.PIPE, text=True, env=_environment()
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())  # it compiles, and holds the lock
    assert _runs(worker)
    assert list(cache.directory.glob("locks/*"))
    parent.kill()
    parent.wait()
    for _ in range(500):
        if not _runs(worker):
            break
        time.sleep(0.01)
    assert not _runs(worker)
    assert list(cache.directory.glob("kernels/*/*")) == []
    substitute({SMALL: ENDLESS})
    with open(cache.directory / "locks" / compiler._prepare(PROBLEM, SMALL).key[:3]) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises when it is held


_ASKER = """
import sys
from pathlib import Path
from tileseek.codegen import Cache, compile_kernel
from toolchain import PROBLEM, SMALL
cache = Cache(Path(sys.argv[1]))
print("ready", flush=True)
print(compile_kernel(PROBLEM, SMALL, cache).cached)
"""


def test_processes_that_ask_at_once_compile_once(cache: Cache) -> None:
    key = compiler._prepare(PROBLEM, SMALL).key
    with cache.lock(key, patience_s=10.0):
        askers = [
            subprocess.Popen(
                [sys.executable, "-c", _ASKER, str(cache.directory)],
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
            for _ in range(4)
        ]
        assert [asker.stdout.readline() for asker in askers if asker.stdout] == ["ready\n"] * 4
        time.sleep(0.5)  # now they wait for the lock
        assert records(cache) == []
    outputs = [asker.communicate(timeout=60)[0].strip() for asker in askers]
    assert sorted(outputs) == ["False", "True", "True", "True"]


def test_holder_of_a_lock_that_hangs_does_not_hang_the_others(cache: Cache) -> None:
    """After its patience a process compiles without the lock."""
    key = content_key("held")
    with cache.lock(key, patience_s=1.0), cache.lock(key, patience_s=0.05):
        cache.put(key, Entry(b"cubin", {"a": 1}))
    assert cache.get(key) == Entry(b"cubin", {"a": 1})


def test_number_of_workers(monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="0 compile workers"):
        CompilePool(0, cache=cache)
    assert 1 <= limits_module.worker_limit() <= len(os.sched_getaffinity(0))
    assert CompilePool(1000, cache=cache).size == limits_module.worker_limit()
    monkeypatch.setattr(limits_module, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for quota, limit, used, expected in (
        ("200000 100000", "max", "0", 2),
        ("150000 100000", "max", "0", 2),
        ("max 100000", str(5 * limits_module.WORKER_BYTES), str(2 * limits_module.WORKER_BYTES), 3),
        ("max 100000", "1000", "2000", 1),
    ):
        for name, text in (("cpu.max", quota), ("memory.max", limit), ("memory.current", used)):
            (tmp_path / name).write_text(text + "\n")
        assert limits_module.worker_limit() == expected


# --- the cache ---


@pytest.mark.parametrize(
    "damage", ("truncated", "emptied", "changed", "not an object", "other format", "no cubin", "cubin changed")
)
def test_damaged_entry_is_a_miss_and_replaced(cache: Cache, damage: str) -> None:
    key = content_key("kernel")
    entry = Entry(b"cubin", {"status": "ok", "seconds": 0.25})
    cache.put(key, entry)
    (record,) = records(cache)
    cubin = record.with_suffix(".cubin")
    text = record.read_text()
    if damage == "truncated":
        record.write_text(text[: len(text) // 2])
    elif damage == "emptied":
        record.write_text("")
    elif damage == "changed":
        record.write_text(text.replace("0.25", "0.75"))
    elif damage == "not an object":
        record.write_text("[1, 2]")
    elif damage == "other format":
        record.write_text(json.dumps({**json.loads(text), "v": 2}))
    elif damage == "no cubin":
        cubin.unlink()
    else:
        cubin.write_bytes(b"cubim")
    assert cache.get(key) is None
    assert cache.corrupt == {key}
    cache.put(key, entry)
    assert cache.get(key) == entry
    assert cache.corrupt == {key}


def test_damaged_kernel_is_compiled_again(cache: Cache) -> None:
    first = compile_kernel(PROBLEM, SMALL, cache)
    (record,) = records(cache)
    record.with_suffix(".cubin").write_bytes(first.cubin[:-1])
    again = compile_kernel(PROBLEM, SMALL, cache)
    assert (again.cached, again.cubin, cache.corrupt) == (False, first.cubin, {first.key})
    assert compile_kernel(PROBLEM, SMALL, cache).cached


def test_crash_while_writing_leaves_a_miss(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the process ends, an entry is there whole or not at all."""
    key = content_key("kernel")
    for survived in range(2):
        with monkeypatch.context() as patch:
            replaced: list[object] = []

            def crash(source: Path, target: Path, replaced: list[object] = replaced, allowed: int = survived) -> None:
                if len(replaced) == allowed:
                    raise KeyboardInterrupt
                replaced.append(target)
                os.rename(source, target)

            patch.setattr(os, "replace", crash)
            with pytest.raises(KeyboardInterrupt):
                cache.put(key, Entry(b"cubin", {}))
        assert cache.get(key) is None
        assert not list(cache.directory.glob("kernels/*/.*")), "no partial file"
    assert not cache.corrupt


def test_kernel_that_cannot_be_kept_is_still_a_kernel(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert compile_kernel(PROBLEM, SMALL, cache).status == "ok"
    assert cache.write_errors == 1
    assert records(cache) == []


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILESEEK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "tileseek"
    monkeypatch.setenv("TILESEEK_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == Cache().directory == tmp_path / "mine"
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="file/cache cannot be used"):
        Cache(tmp_path / "file" / "cache")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _environment() -> dict[str, str]:
    """For a Python that imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
