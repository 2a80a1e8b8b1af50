"""How much memory and time fitting an encoder takes, and the limits for both.

The estimates depend only on the size of the fit, so they are checked before any work starts. They are upper bounds:
``itq`` usually stops before the last round. Times are for one core of a machine of 2020 or later, measured with
OpenBLAS. A slower machine takes longer, but every machine allows the same fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from whamming.native import InvalidArgumentError

MAX_BYTES: Final = 1 << 30
"""How much memory a fit may take by default, in addition to the sample."""

MAX_SECONDS: Final = 60.0
"""How long a fit may take by default, according to the estimate."""

# Measured seconds per elementary step.
_PRODUCT: Final = 1.6e-11
"""One multiplication and addition in a product of single-precision matrices."""
_EIGEN: Final = 2.1e-10
"""The eigenvectors of a symmetric n x n matrix take this times n^3."""
_SVD: Final = 5.5e-10
"""The singular vectors of an n x n matrix take this times n^3."""
_NUMBER: Final = 4e-9
"""Reading, checking and converting one number, several times."""
_RANDOM: Final = 8e-8
"""One random number of the matrix of ``lsh``, with its scaling."""

_BASE_BYTES: Final = 64 << 20
"""Memory for blocks of the sample, and other memory that does not depend on the size."""

Part = Literal["components", "bits", "sample"]


@dataclass(frozen=True)
class FitLimits:
    """Limits for fitting an encoder. The defaults are also the limits of a server."""

    max_bytes: int = MAX_BYTES
    max_seconds: float = MAX_SECONDS


@dataclass(frozen=True)
class FitSize:
    """The size of a fit. It determines how much memory and time the fit takes."""

    kind: Literal["sign", "lsh", "itq"]
    rows: int
    """Number of vectors in the sample; 0 if there is none."""
    dim: int
    bits: int
    rotated: int = 0
    """For ``itq``, how many of the rows are used to find the rotation."""
    rounds: int = 0
    """For ``itq``, the maximum number of rounds."""

    @property
    def needed_bytes(self) -> int:
        """The memory that the fit takes at most, in addition to the sample."""
        return _BASE_BYTES + int(sum(self._bytes().values()))

    @property
    def seconds(self) -> float:
        """About how long the fit takes on one core, if ``itq`` needs all its rounds."""
        return sum(self._seconds().values())

    def is_within(self, limits: FitLimits) -> bool:
        return self.needed_bytes <= limits.max_bytes and self.seconds <= limits.max_seconds

    def check(self, limits: FitLimits) -> None:
        """Raise InvalidArgumentError if the fit would take more memory or time than allowed."""
        if self.needed_bytes > limits.max_bytes:
            needs = f"needs about {self.needed_bytes / 2**30:.1f} GiB"
            self._refuse(needs, f"{limits.max_bytes / 2**30:.1f} GiB", self._bytes())
        if self.seconds > limits.max_seconds:
            self._refuse(f"takes about {self.seconds:.0f} seconds", f"{limits.max_seconds:.0f}", self._seconds())

    def _refuse(self, needs: str, limit: str, parts: dict[Part, float]) -> None:
        largest = max(parts, key=lambda part: parts[part])
        sample = f"{self.rows} vectors" if self.rows else "vectors"
        raise InvalidArgumentError(
            f"fitting {self.kind} with {self.bits} bits to {sample} of {self.dim} components {needs}; the limit is "
            f"{limit}: use {self._remedy(largest)}, or whamming.fit_encoder(..., limits=None), which has no limits"
        )

    def _remedy(self, largest: Part) -> str:
        other = {"itq": ", or encoder = 'lsh'", "lsh": ", or encoder = 'sign'", "sign": ""}[self.kind]
        if largest == "sample":
            return f"a smaller sample{other}"
        return f"fewer {largest}{other}"

    def _bytes(self) -> dict[Part, float]:
        """Return the memory in bytes, in shares. The key of a share is what the share depends on most.

        The matrices of one step exist at the same time.
        """
        matrix = self.dim * self.bits
        if self.kind == "sign":
            return {"components": 32 * self.dim}
        if self.kind == "lsh":
            return {"bits": 32 * matrix}
        return {
            "components": 40 * self.dim**2,  # the covariance, and the work space of its eigenvectors
            "bits": 80 * self.bits**2 + 24 * matrix,
            "sample": 4 * self.rotated * self.bits,
        }

    def _seconds(self) -> dict[Part, float]:
        """Return the time in seconds, in shares like those of :meth:`_bytes`."""
        read, project = _NUMBER * self.rows * self.dim, _PRODUCT * self.rows * self.dim * self.bits
        if self.kind == "sign":
            return {"sample": read}
        if self.kind == "lsh":
            return {"bits": _RANDOM * self.dim * self.bits, "sample": read + project}
        turn = 2 * _PRODUCT * self.rotated * self.bits**2 + _NUMBER * self.rotated * self.bits
        return {
            "components": _EIGEN * self.dim**3,
            "bits": _SVD * self.rounds * self.bits**3 + _RANDOM * self.dim * self.bits,
            "sample": read + 2 * project + _PRODUCT * self.rows * self.dim**2 + (self.rounds + 1) * turn,
        }
