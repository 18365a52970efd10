"""Jobs in this process and in others: the same results, few at a time, nothing lost, nobody left behind."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapd.errors import ConfigError, InputError
from gaptrain.executor import Local

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # tests are no package; processes get the path

import executor_jobs as jobs  # noqa: E402


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_are_the_same_however_many_processes(processes: int) -> None:
    found = list(Local(processes).map(jobs.squared, 10, range(8)))
    assert {job: result for job, (result, _) in found} == {job: 10 + job * job for job in range(8)}
    assert len(found) == 8
    makers = {pid for _, (_, pid) in found}
    assert len(makers) == processes
    assert (os.getpid() in makers) == (processes == 1)


def test_no_jobs_need_no_process() -> None:
    assert list(Local(2).map(jobs.squared, 0, [])) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_are_taken_when_there_is_room(processes: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    results = Local(processes).map(jobs.squared, 0, endless())
    for count in range(1, 8):
        next(results)
        assert len(taken) <= count + processes
    results.close()  # type: ignore[attr-defined]


def test_an_error_is_raised_once_as_it_is_and_ends_the_others() -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"^value 1 is out of range; lower it$") as caught:
        list(Local(2).map(jobs.refused, None, range(4)))
    assert time.monotonic() - began < 20
    assert not hasattr(caught.value, "__notes__")


def test_a_fault_of_the_program_says_where_it_is() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(Local(2).map(jobs.divided, 1.0, [1.0, 0.0]))
    assert "in divided" in caught.value.__notes__[0]


def test_an_error_that_cannot_be_sent_says_the_same() -> None:
    with pytest.raises(RuntimeError, match=r"^Odd: 1 is not 2$"):
        list(Local(2).map(jobs.odd, None, [1]))


def test_a_job_whose_process_is_killed_runs_again(tmp_path: Path) -> None:
    found = dict(Local(2).map(jobs.killed_once, tmp_path, range(6)))
    assert found == {job: job for job in range(6)}
    assert (tmp_path / "killed").exists()


def test_jobs_that_always_kill_their_process_end_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"7: its process ended 3 times .*exit code -9.* Use fewer --threads"):
        list(Local(2).map(jobs.killed, None, [7]))


def test_processes_end_with_the_one_that_gives_the_jobs(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import executor_jobs as jobs; from gaptrain.executor import Local\n"
        "list(Local(2).map(jobs.sleeping, Path(sys.argv[1]), range(2)))"
    )
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    driver = subprocess.Popen([sys.executable, "-c", script, tmp_path], env=os.environ | {"PYTHONPATH": path})
    marks = [tmp_path / f"{job}.pid" for job in range(2)]
    wait_until(lambda: all(m.exists() and m.read_text() for m in marks))
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(running(int(m.read_text())) for m in marks))


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Whether a process runs: not one that has ended and waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
