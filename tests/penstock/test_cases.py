"""`penstock cases check`: what it prints, and how it exits."""

import json
from pathlib import Path

import pytest

from .commands import run

GOOD = {"task_id": "good", "inputs": ["3\n"], "outputs": ["9\n"], "solution": "print(9)"}
BROKEN = {"task_id": "broken", "inputs": ["3\n"], "outputs": ["8\n"], "solution": "print(9)"}


def written(folder: Path, *rows: object) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_broken_row_is_told_and_is_bad_news(tmp_path: Path) -> None:
    ran = run("cases", "check", written(tmp_path, GOOD, BROKEN))
    assert ran.returncode == 1, ran
    (line,) = (line for line in ran.stdout.splitlines() if "broken " in line)
    assert line.split()[:4] == ["1", "broken", "error", "no_reference_passes"]
    assert "1 of 2 rows are broken" in ran.stdout


def test_good_rows_are_told_as_json(tmp_path: Path) -> None:
    ran = run("cases", "check", "--json", "--at-once", "1", written(tmp_path, GOOD, GOOD))
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert [row["passed"] for row in found["rows"]] == [1, 1]
    assert (found["summary"]["rows"], found["summary"]["broken"]) == (2, 0)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = Path(written(tmp_path, GOOD))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert run("cases", "check", str(file)).returncode == 0
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"inputs": [], "outputs": []}).encode())
    assert "there are no cases" in run("run", "--cases", str(file), str(file)).stderr


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    for text, why in (("", "has no rows"), ("{}\nno\n", "line 2 is not JSON")):
        file = tmp_path / "odd.jsonl"
        file.write_text(text)
        ran = run("cases", "check", str(file))
        assert ran.returncode == 2
        assert why in ran.stderr


@pytest.mark.parametrize("wish", [("--language", "pyhton"), ("--timeout", "nan")])
def test_a_wish_that_no_row_can_have_is_not_the_datas_fault(
    tmp_path: Path, wish: tuple[str, str]
) -> None:
    ran = run("cases", "check", *wish, written(tmp_path, GOOD))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Error: " in ran.stderr
    assert wish[0] in ran.stderr.rpartition("Error: ")[2]
