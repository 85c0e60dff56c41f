import re
from pathlib import Path

from instrumented_engine.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()


def test_the_page_lists_every_setting_and_no_other():
    listed = re.findall(r"^\| `--([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in Settings.model_fields]


def test_the_page_links_to_what_exists():
    for link in re.findall(r"\]\((\.\./[^)#]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists(), link
