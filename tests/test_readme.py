"""The examples in the README and in the guides beside the code print the output that is shown there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.markdown import check_examples
from tests.serving import ServerProcess

PAGES = {"README.md": 3, "clients/README.md": 3, "native/README.md": 3, "server/README.md": 2, "storage/README.md": 2}
"""Pages with examples, and how many each has at least."""


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_the_output_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ServerProcess() as server:
        assert check_examples(page, server.address) >= PAGES[page]
        server.check_log()
