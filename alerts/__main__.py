"""`python -m alerts`: write the Prometheus rules for an SLO file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from alerts.engine_packs import packs
from alerts.generate import generate
from collector.slo.burn import InfeasibleSlo
from collector.slo.model import SloFileError, load_slos

HERE = Path(__file__).parent


class Generate(BaseSettings):
    """Write the Prometheus rules that watch the SLOs of a file."""

    model_config = SettingsConfigDict(cli_prog_name="python -m alerts", extra="forbid")

    slos: Path = Field(HERE / "slos.yaml", description="the SLO file")
    out: Path = Field(HERE / "rules", description="folder that the rule files are written into")
    packs: Path | None = Field(None, description="folder that the packs are written into, one file each")

    def cli_cmd(self) -> None:
        """Write the files. When the SLO file cannot be used, exit with 2 and name the problem."""
        try:
            files = generate(load_slos(self.slos))
        except (SloFileError, InfeasibleSlo) as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(2) from None
        _write(self.out, files)
        if self.packs:
            _write(self.packs, {f"{name}.yml": text for name, text in packs().items()})


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{folder / name}\n")


if __name__ == "__main__":
    CliApp.run(Generate)
