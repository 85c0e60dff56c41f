"""`python -m alerts`: write the Prometheus rules for an SLO file."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from alerts.generate import generate
from collector.slo.burn import InfeasibleSlo
from collector.slo.model import SloFileError, load_slos

HERE = Path(__file__).parent


class Generate(BaseSettings):
    """Write the Prometheus rules that watch the SLOs of a file."""

    model_config = SettingsConfigDict(cli_prog_name="python -m alerts", extra="forbid")

    slos: Path = Field(HERE / "slos.yaml", description="the SLO file")
    out: Path = Field(HERE / "rules", description="folder that the rule files are written into")

    def cli_cmd(self) -> None:
        """Write the files. When the SLO file cannot be used, exit with 2 and name the problem."""
        try:
            files = generate(load_slos(self.slos))
        except (SloFileError, InfeasibleSlo) as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(2) from None
        self.out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.out / name).write_text(text, encoding="utf-8")
            sys.stdout.write(f"{self.out / name}\n")


if __name__ == "__main__":
    CliApp.run(Generate)
