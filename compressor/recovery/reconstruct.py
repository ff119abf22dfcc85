"""The method `reconstruct`, see `compressor.recovery.least_squares`."""

from __future__ import annotations

from typing import ClassVar

from compressor.recovery import Recovered, RecoveryJob, RecoveryMethod


class Reconstruct(RecoveryMethod):
    """Re-solve the projections into the residual stream by least squares; needs no labels."""

    undoes_training: ClassVar[bool] = True

    name: ClassVar[str] = "reconstruct"

    def recover(self, job: RecoveryJob) -> Recovered:
        from compressor.recovery.least_squares import reconstruct

        return reconstruct(job)
