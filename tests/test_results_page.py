"""Laws of the page and of the README's table: self-contained, well-formed, escaped, idempotent."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from equinorm.cli import run as command_line
from equinorm.errors import ArgumentError
from equinorm.experiments.report import page, readme
from equinorm.experiments.report.style import STYLE
from equinorm.experiments.reproduce import results
from equinorm.experiments.reproduce.results import Figure, Outcome, Table

VOID = {"meta", "img", "br"}
NASTY = "<script>alert(1)</script> & \"quoted\" 'single' http://example.org/x"
SVG = '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'


def outcome(
    text: str = "plain", name: str = "table-mnist", shortened: tuple[str, ...] = ("epochs: 1",)
) -> Outcome:
    return Outcome(
        name=name,
        title=text,
        source=text,
        claim=text,
        found=text,
        preset="quick",
        command=text,
        shortened=shortened,
        notes=(text,),
        table=Table(("Method", text), (("BN", "0.171 ± 0.001 (n = 2)"), (text, "diverged"))),
        figures=(Figure("curves", text),),
        runs=("a.json", "b.json"),
        seconds=150.0,
        environment={"date": "2026-01-02", "machine": text, "commit": text},
        published=True,
    )


def written(folder: Path, *outcomes: Outcome) -> Path:
    for one in outcomes:
        results.prepare(folder / one.name, one.preset)
        results.write(one, folder / one.name)
        (folder / one.name / "curves.svg").write_text(SVG)
    return folder


class Reader(HTMLParser):
    """Checks that tags nest, and collects what a browser would fetch, run or show."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has a handler"
            if name in ("src", "href", "srcset", "action", "data"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [], "unclosed tags"
    return reader


@pytest.mark.parametrize("text", ["plain", NASTY, 'a" onload="x', "</table></style>", "&amp;"])
def test_the_page_is_self_contained_and_escaped(text: str, tmp_path: Path) -> None:
    outcomes = [outcome(text), outcome(text, "fig-mnist", ())]
    source = page.page(outcomes, written(tmp_path, *outcomes))
    reader = read(source)
    assert not {"script", "link", "iframe", "object", "base", "svg"} & set(reader.tags)
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert len(set(reader.ids)) == len(reader.ids)
    shown = "".join(reader.text)
    assert shown.count(text) >= 2 * 7, "title, source, claim, finding, command, note, cell of each"
    assert shown.count("diverged") == 2
    assert not re.search(r"url\(|@import", STYLE)


def test_tables_have_every_cell_and_scroll_by_themselves(tmp_path: Path) -> None:
    one = outcome()
    source = page.page([one], written(tmp_path, one))
    assert source.count("<table>") == source.count('<div class="scroll" tabindex="0"') == 2
    for cell in (cell for row in one.table.rows for cell in row):
        assert f">{cell}</t" in source


def test_what_is_shortened_is_marked(tmp_path: Path) -> None:
    whole = outcome(shortened=())
    source = page.page([whole], written(tmp_path, whole))
    assert "What quick shortened" not in source and 'class="badge complete"' in source
    source = page.page([replace(outcome(), published=False)], tmp_path)
    assert 'class="badge stand-in"' in source
    source = page.page([outcome()], tmp_path)
    assert "What quick shortened" in source and 'class="badge quick"' in source and "epochs: 1" in source


def test_results_survive_being_written(tmp_path: Path) -> None:
    one = outcome(NASTY)
    assert results.read(written(tmp_path, one) / one.name) == one
    assert one.table.markdown() in (tmp_path / one.name / "table.md").read_text(encoding="utf-8")


README = f"# Title\n\n{readme.BEGIN}\nold\n{readme.END}\n\nThe rest stays.\n"


def test_the_readmes_table_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    path, outcomes = tmp_path / "README.md", [outcome("a | b"), outcome("c", "fig-mnist", ())]
    path.write_text(README)
    readme.update(path, outcomes, tmp_path / "results")
    once = path.read_text()
    readme.update(path, outcomes, tmp_path / "results")
    assert path.read_text() == once
    before, _, rest = once.partition(readme.BEGIN)
    between, _, after = rest.partition(readme.END)
    assert (before, after) == ("# Title\n\n", "\n\nThe rest stays.\n")
    rows = [line for line in between.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 and "old" not in between
    unescaped = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    assert unescaped == [6] * 4
    assert "[table-mnist](results/table-mnist/table.md)" in rows[2] and "2.5 min" in rows[2]
    assert "| quick |" in rows[2] and "| complete |" in rows[3]
    assert "shortened" in between
    readme.update(path, outcomes[1:], tmp_path / "results")
    assert "shortened" not in path.read_text(), "nothing was"


@pytest.mark.parametrize(
    "text",
    ["none", readme.BEGIN, f"{readme.END}{readme.BEGIN}", README + readme.BEGIN, README + readme.END],
)
def test_a_readme_without_one_pair_of_markers_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="once each"):
        readme.update(path, [outcome()], tmp_path)
    assert path.read_text() == text


def test_report_writes_page_and_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "results", outcome(NASTY), outcome("b", "fig-energy"))
    (tmp_path / "README.md").write_text(README)
    assert command_line(["report", str(folder), "--readme", str(tmp_path / "README.md")]) == 0
    assert "report.html" in capsys.readouterr().out
    reader = read((folder / "report.html").read_text(encoding="utf-8"))
    assert [name for name in reader.ids if name] == ["fig-energy", "table-mnist"], "in the paper's order"
    assert readme.BEGIN in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: (folder / "table-mnist/curves.svg").unlink(),
            ["curves.svg", "run equinorm reproduce"],
        ),
        (lambda folder: (folder / "table-mnist/result.json").write_text("{"), ["result.json", "JSON"]),
        (
            lambda folder: (folder / "table-mnist/result.json").write_text("{}"),
            ["result.json", "run it again"],
        ),
        (lambda folder: (folder / "table-mnist/result.json").unlink(), ["holds no results"]),
    ],
)
def test_damaged_results_are_one_line(
    damage: object, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path, outcome())
    damage(folder)  # type: ignore[operator]
    assert command_line(["report", str(folder)]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in line
    assert not (folder / "report.html").exists()


def test_seconds_must_be_a_time() -> None:
    with pytest.raises(ArgumentError, match="seconds"):
        replace(outcome(), seconds=float("nan"))
