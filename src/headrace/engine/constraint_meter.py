"""What a sequence's constraint takes and does, counted as it runs."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.timeline import ConstraintUse


@dataclass(slots=True)
class ConstraintMeter:
    """See ``ConstraintUse``; ``masked_mass`` is added up over masks. It grows while the sequence runs."""

    kind: str
    was_cached: bool
    compile_s: float
    num_masks: int = 0
    mask_s: float = 0.0
    masked_mass: float = 0.0
    most_masked_mass: float = 0.0
    num_forced_tokens: int = 0

    def note_mask(self, mask_s: float, masked_mass: float) -> None:
        """Take in a step: the sequence's share of its mask's time, and how likely a forbidden token was."""
        self.num_masks += 1
        self.mask_s += mask_s
        self.masked_mass += masked_mass
        self.most_masked_mass = max(self.most_masked_mass, masked_mass)

    def told(self) -> ConstraintUse:
        return ConstraintUse(
            kind=self.kind,
            was_cached=self.was_cached,
            compile_s=self.compile_s,
            num_masks=self.num_masks,
            mask_s=self.mask_s,
            mean_masked_mass=self.masked_mass / max(1, self.num_masks),
            most_masked_mass=self.most_masked_mass,
            num_forced_tokens=self.num_forced_tokens,
        )
