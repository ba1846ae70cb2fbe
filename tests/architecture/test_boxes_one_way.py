"""One way each for sandboxes that stay: how one is recorded, kept, ended and spoken to."""

import re

from tests.architecture.source import modules, name_of


def files_with(pattern: str, *packages: str) -> set[str]:
    found = re.compile(pattern)
    return {name_of(file) for file in modules(*packages) if found.search(file.read_text())}


def test_only_the_keeper_writes_records_and_takes_starting_permits() -> None:
    keeper = {"worker/lifecycle/keeper.py"}
    assert files_with(r"registry\.open\(", "worker") == keeper
    assert files_with(r"\.entrust\(", "worker", "penstock") == keeper
    assert files_with(r"\bgate\.acquire\(", "worker/lifecycle", "worker/e2b") == keeper


def test_e2bs_server_opens_its_sessions_by_itself() -> None:
    assert files_with(r"SandboxSpec", "worker/e2b") == set()


def test_commands_and_files_of_clouds_pass_one_base() -> None:
    assert files_with(r"\bshell\.run\(", "worker") == {"worker/lifecycle/clouds/cloud.py"}
    providers = files_with(r"def (exec|create)\(\s*self,\s*(ref|spec)", "worker/lifecycle")
    apart = {"worker/lifecycle/provider.py", "worker/lifecycle/local/provider.py"}
    clouds = files_with(r"class \w+Provider\(Cloud\)", "worker/lifecycle")
    assert providers - apart - clouds <= {
        "worker/lifecycle/clouds/cloud.py", "worker/lifecycle/modal/deployment.py",
    }  # fmt: skip


def test_lists_pauses_and_shares_of_the_command_have_one_helper() -> None:
    helper = "penstock/listing.py"
    assert files_with(r"command\(\s*\"(pause|resume)\"", "penstock") == set()
    assert (
        files_with(r"json\.dumps\(\[", "penstock/commands", "penstock/queues", "penstock/gates")
        == set()
    )
    assert files_with(r"Table\(\"share\"", "penstock") == {helper}
    assert files_with(r"One JSON array on stdout\.\"\)", "penstock") == {helper}


def test_no_schema_of_a_buffers_or_a_monitors_request_is_written_by_hand() -> None:
    by_hand = r"\"properties\":|\"maxItems\":|\"additionalProperties\":"
    assert files_with(by_hand, "buffer", "penstock/monitor") == set()
