"""What happens once per sweep: its MLflow parent run is closed when the last job has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from quantpipe.tracking import finish_sweep


class SweepEnd(Callback):
    """Hydra calls this in the launching process, whatever the launcher."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Close the sweep's parent run in MLflow."""
        launch = Path(config.hydra.runtime.cwd)
        finish_sweep(launch / config.hydra.sweep.dir, OmegaConf.select(config, "tracking.uri"), launch)
