"""Where a program runs, how it is judged, and which process keeps it: one file each."""

import re

from tests.architecture.source import modules, name_of
from tests.architecture.tree import imports_of


def importers(*files: str) -> set[str]:
    graph = imports_of(modules())
    assert set(files) <= set(graph), "a file was renamed"
    return {name for name, imported in graph.items() if imported & {*files}}


def test_a_process_finds_its_sandbox_by_its_workers_settings_or_by_a_place() -> None:
    workers = {name for name in importers("worker.run.choice") if "concurrent" in name}
    assert importers("worker.run.choice") - workers == {
        "worker.jobs", "worker.place", "penstock.in_process", "penstock.commands.worker",
    }  # fmt: skip


def test_no_other_file_tells_a_queues_url_from_a_servers() -> None:
    pattern = re.compile(r"rediss\?")
    found = {name_of(file) for file in modules("worker") if pattern.search(file.read_text())}
    assert found == {"worker/place.py"}


def test_case_by_case_judges_only_the_workers_judge() -> None:
    """And verl's functions, by whose own call a server is asked for each case."""
    assert importers("worker.judging.by_runs") == {"worker.judging.job"}
    assert importers("worker.judging.job") == {"worker.jobs", "worker.place"}
    texts = {name for name in importers("jail.judge.program") if name.startswith("worker")}
    assert texts == {"worker.judging.by_runs", "worker.reward.check"}


def test_one_process_of_a_machine_serves_programs_and_sessions() -> None:
    starts = {name_of(file) for file in modules("jail") if "os.fork() and" in file.read_text()}
    serves = {name_of(file) for file in modules("jail") if "start_unix_server" in file.read_text()}
    assert (starts, serves) == ({"jail/sessions/launch.py"}, {"jail/sessions/hub/hub.py"})


def test_one_python_stays_from_cell_to_cell() -> None:
    """It alone lets a cell await at its top."""
    found = {name_of(file) for file in modules() if "TOP_LEVEL_AWAIT" in file.read_text()}
    assert found == {"jail/inside/notebook.py"}


def test_what_is_kept_in_part_is_kept_by_one_mapping() -> None:
    bounded = re.compile(r"popitem\(last=False\)")
    rooms = [file for file in modules("worker", "jail") if "e2b" not in file.parts]
    assert [name_of(file) for file in rooms if bounded.search(file.read_text())] == []
