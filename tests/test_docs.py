"""Pages that commands write are current, and the README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equinorm.rules.__main__ import page

ROOT = Path(__file__).parent.parent


def test_supported_operators_are_current() -> None:
    written = (ROOT / "docs/supported-ops.md").read_text(encoding="utf-8")
    assert written == page(), "run `python -m equinorm.rules` and commit docs/supported-ops.md"


def examples() -> list[str]:
    pages = [ROOT / "README.md", ROOT / "docs/how-it-works.md"]
    return [
        code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize("code", examples(), ids=lambda code: code.strip().splitlines()[-1][:40])
def test_examples_run(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {})


def test_links_lead_somewhere() -> None:
    for source in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", source.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (source.parent / target).exists(), f"{source.name}: {target}"
