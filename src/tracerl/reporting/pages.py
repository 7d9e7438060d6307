"""What the HTML pages share: templates beside this file, one theme, values escaped by default, and
no address outside the page's folder."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

_HERE = Path(__file__).parent


def template(name: str, folder: Path = _HERE) -> Template:
    """A template that escapes what it is given and fails on what it is not given.

    folder: where it lies; it may include the style sheets beside this module.
    """
    return Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)
