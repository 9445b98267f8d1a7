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


@pytest.mark.parametrize("page", ["README.md", "docs/how-it-works.md", "docs/training.md"])
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page's examples, pasted one after another into one session."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    session: dict[str, object] = {}
    for number, code in enumerate(examples, start=1):
        exec(compile(code, f"{page}, example {number}", "exec"), session)


def test_links_lead_somewhere() -> None:
    for source in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", source.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (source.parent / target).exists(), f"{source.name}: {target}"
