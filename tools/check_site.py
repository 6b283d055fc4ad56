#!/usr/bin/env python3
"""Build the site strictly, so that every link and anchor holds, and look for misspelt words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = "fro,renderd,whats,halfs,datas"  # to and fro; names in code

_ROLE = re.compile(
    r":(?:attr|class|data|exc|func|meth|mod):\s*(?:<code|`)[^/]*"
)  # tools/site_docstrings.py makes links of them


def main() -> int:
    """Run both; return 1 where one fails."""
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
        failed = subprocess.run(build, cwd=ROOT, env=settings, check=False).returncode
        for page in Path(folder).rglob("*.html"):
            for role in _ROLE.findall(page.read_text()):
                print(f"{page.relative_to(folder)}: {role} is shown as it was written")
                failed |= 1
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "vkpar", "tools"]
    pages = [page for page in pages if (ROOT / page).exists()]
    spell = [sys.executable, "-m", "codespell_lib", "--skip", "*.svg,*.png,*.spv,*.so,*.json", "-L", WORDS, *pages]
    failed |= subprocess.run(spell, cwd=ROOT, check=False).returncode
    if not failed:
        print("the site builds, its links hold, its words are spelt right")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
