"""Hooks of mkdocs: fill in what is generated, and show files of the repository that are outside of `docs/`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from generate import commands, components, messages, names, packages, protocol, python, stages  # noqa: E402

GENERATED = {
    "commands": commands.reference,
    "components": components.reference,
    "messages": lambda: messages.reference(ROOT),
    "message-kinds": protocol.kinds,
    "names": names.table,
    "package-diagram": lambda: packages.drawing(ROOT / "hpcps"),
    "package-table": lambda: packages.table(ROOT / "hpcps"),
    "python": python.reference,
    "stages": stages.tables,
}
# The sentence tells readers of the source why the page has no content there.
_MARK = re.compile(r"<!-- generated: ([a-z-]+) --> `make docs` writes this part\.")
_FOLDERS = "results|benchmarks|launcher|examples|experiments|notebooks"
_OUTSIDE = re.compile(rf"(!?)\[([^\]]*)\]\((?:\.\./)+((?:{_FOLDERS})/[^)]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures of `results/` that pages show."""
    from mkdocs.structure.files import File

    for page in files.documentation_pages():
        for mark, _, path in _OUTSIDE.findall(page.content_string):
            if mark and path not in files.src_uris:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in generated parts; name a file outside of `docs/` instead of a link to it, which only the clone has."""
    up = "../" * page.file.src_uri.count("/")

    def shown(found: re.Match[str]) -> str:
        mark, text, path = found.groups()
        if mark:
            return f"![{text}]({up}{path})"
        return text if path in text else f"{text} (`{path}`)"

    markdown = _OUTSIDE.sub(shown, markdown)
    return _MARK.sub(lambda found: GENERATED[found[1]]() if found[1] in GENERATED else found[0], markdown)
