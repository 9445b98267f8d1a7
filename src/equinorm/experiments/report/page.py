"""One self-contained HTML page from the results: no request leaves it, everything that comes from data is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from equinorm.errors import ArgumentError
from equinorm.experiments.report.style import STYLE
from equinorm.experiments.reproduce.results import Outcome, Table, write_text

TITLE = "Equi-normalization, reproduced"
ABSTRACT = (
    "Rescaling a ReLU unit's input and output weights leaves the function of a network as it is. Equi-normalization "
    "(Stock, Graham, Gribonval, Jégou, 2019) moves the weights to the one point of least norm among all such "
    "rescalings, after every step of SGD. This page sets the paper's figures and tables beside those that the "
    "independent implementation <code>equinorm</code> gives."
)
QUICK = (
    "Results marked <b>quick</b> are shortened, to minutes on the machine below: they show that everything runs, "
    "and tendencies, not the paper's numbers. Each says what it shortened."
)


def write(path: Path, outcomes: Sequence[Outcome], results: Path) -> None:
    """Write the page; pictures are read from the results' folders."""
    write_text(path, page(outcomes, results))


def page(outcomes: Sequence[Outcome], results: Path) -> str:
    """The page as text."""
    sections = "\n".join(_section(outcome, results / outcome.name) for outcome in outcomes)
    quick = f"<p>{QUICK}</p>" if any(outcome.shortened for outcome in outcomes) else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{TITLE}</h1>
<p>{ABSTRACT}</p>
{quick}
</header>
<main>
<section>
<h2>At a glance</h2>
<ul class="glance">
{"".join(_glance(outcome) for outcome in outcomes)}
</ul>
</section>
{sections}
<section>
<h2>Machine and versions</h2>
{_environments(outcomes)}
</section>
</main>
</body>
</html>
"""


def _glance(outcome: Outcome) -> str:
    name = escape(outcome.name)
    return (
        f'<li><a href="#{name}">{escape(outcome.title)}</a> {_badge(outcome)}<br>'
        f"<span>{escape(outcome.found)}</span></li>\n"
    )


def _badge(outcome: Outcome) -> str:
    return f'<span class="badge {outcome.extent}">{outcome.extent}</span>'


def _section(outcome: Outcome, folder: Path) -> str:
    figures = "".join(_figure(folder, figure.stem, figure.caption) for figure in outcome.figures)
    return f"""<section id="{escape(outcome.name)}">
<h2>{escape(outcome.title)} {_badge(outcome)}</h2>
<p class="source">The paper's {escape(outcome.source)}</p>
<p><b>The paper says:</b> {escape(outcome.claim)}</p>
<p><b>We found:</b> {escape(outcome.found)}.</p>
<pre tabindex="0"><code>{escape(outcome.command)}</code></pre>
{f'<div class="figures">{figures}</div>' if figures else ""}
{_table(outcome.table, outcome.title)}
{_list("What quick shortened", outcome.shortened, "shortened")}
{_list("Notes", outcome.notes, "notes")}
<p class="source">{len(outcome.runs)} run{"" if len(outcome.runs) == 1 else "s"},
{_duration(outcome.seconds)} in all; {escape(outcome.environment["date"])},
commit {escape(outcome.environment["commit"][:12])}</p>
</section>"""


def _figure(folder: Path, stem: str, caption: str) -> str:
    path = folder / f"{stem}.svg"
    try:
        content = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise ArgumentError(
            f"{path}: cannot be read ({error.strerror}); run equinorm reproduce again"
        ) from error
    # As a picture of its own: ids inside of SVG files would clash on one page, and scripts in it do not run.
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{content}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _table(table: Table, title: str) -> str:
    head = _cells("th", table.columns, 'scope="col"')
    rows = "".join(f"<tr>{_row(row)}</tr>\n" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}, table">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _row(row: Sequence[str]) -> str:
    return _cells("th", row[:1], 'scope="row"') + _cells("td", row[1:])


def _cells(tag: str, texts: Iterable[str], attributes: str = "") -> str:
    opening = f"{tag} {attributes}".strip()
    return "".join(f"<{opening}>{escape(text)}</{tag}>" for text in texts)


def _list(title: str, lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="{kind}"><b>{title}</b><ul>{items}</ul></div>'


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _environments(outcomes: Sequence[Outcome]) -> str:
    """One row per distinct environment; dates and commits stand with the results."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    names = ("machine", "system", "equinorm", "torch", "python")
    for outcome in outcomes:
        key = tuple(outcome.environment.get(name, "") for name in names)
        kinds.setdefault(key, []).append(outcome.name)
    columns = ("results", *names)
    rows = tuple(("all" if len(kinds) == 1 else ", ".join(of), *key) for key, of in kinds.items())
    return _table(Table(columns, rows), "Machine and versions")
