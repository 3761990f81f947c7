from torch import nn

from calibrant.checks import whole


class MLP(nn.Sequential):
    """Linear layers with ReLUs between them, on inputs of any shape.

    Args:
        num_classes: Number of outputs.
        inputs: Number of values in a sample, such as 1 * 28 * 28; inferred from the first batch if None.
        hidden: Widths of the hidden layers.
    """

    def __init__(self, num_classes: int, *, inputs: int | None = None, hidden: tuple[int, ...] | list[int] = (128,)) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in (*hidden, num_classes):
            whole("`model.hidden`", width, 1)
            first = len(layers) == 1
            layers += [nn.LazyLinear(width) if first and inputs is None else nn.Linear(inputs or 0, width), nn.ReLU()]
            inputs = width
        super().__init__(*layers[:-1])
