"""What a stream remembers."""

from typing import NamedTuple

from torch import Tensor


class StreamState(NamedTuple):
    """The state of a causal layer: its size does not depend on the length.

    ``tensors`` are batch first; ``step`` writes them in place. ``prepared`` is
    what follows from the weights alone.

    Example::

        with torch.no_grad():
            out, state = layer(prompt, causal=True, return_state=True)
            out = layer.step(token, state)        # [B,D] -> [B,D]
            state = state.reorder(best_beams)     # int64 [B], for beam search
    """

    tensors: tuple[Tensor, ...]
    prepared: Tensor | None = None

    def reorder(self, index: Tensor) -> "StreamState":
        """A copy with row ``index[i]`` in place of row i."""
        tensors = tuple(x.index_select(0, index) for x in self.tensors)
        return self._replace(tensors=tensors)

    def clone(self) -> "StreamState":
        """A copy that a step of this one does not change."""
        return self._replace(tensors=tuple(x.clone() for x in self.tensors))
