"""Local temperature scaling, for dense predictions."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.checks import in_range, whole
from calibrant.posthoc.base import Calibrator, finite, mean_nll
from calibrant.posthoc.temperature import optimal_temperature
from calibrant.tensors import Samples


class LocalTemperatureScaling(Calibrator):
    r"""A temperature for each pixel: :math:`\log \mathrm{softmax}(l / T(l))` (Ding et al., ICCV 2021).

    A small network of two 3 x 3 convolutions looks at the log-probabilities around a pixel and predicts :math:`\log (T
    / T_0)`, where :math:`T_0` is the temperature of plain temperature scaling, from which it starts. It is trained on
    the NLL by Adam; the epoch with the lowest NLL on the fitting data is kept. Unlike in the paper, it does not see the
    image.

    Args:
        width: Channels of the network.
        epochs: Passes over the images.
        batch_size: Images per step.
        lr: Learning rate.
        seed: Seed of the initial weights and the order of the images.

    Example:
        >>> from calibrant.posthoc import LocalTemperatureScaling
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> calibrator = LocalTemperatureScaling(epochs=1).fit(logits, target)
        >>> calibrator.temperatures(logits).shape  # one per pixel
        torch.Size([1, 1, 2, 4])
    """

    key = "local-temperature"
    preserves_accuracy = True
    learned: ClassVar[tuple[str, ...]] = ("temperature_",)
    temperature_: Tensor

    def __init__(self, *, width: int = 16, epochs: int = 20, batch_size: int = 4, lr: float = 3e-3, seed: int = 0) -> None:
        super().__init__()
        self.width = whole("width", width, 1)
        self.epochs = whole("epochs", epochs, 1)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.lr = in_range("lr", lr, 0, above=True)
        self.seed = whole("seed", seed)
        self.network: nn.Sequential | None = None

    def _build(self, classes: int) -> nn.Sequential:
        devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed)
            network = nn.Sequential(
                nn.Conv2d(classes, self.width, 3, padding=1, padding_mode="replicate"),
                nn.ReLU(),
                nn.Conv2d(self.width, self.width, 3, padding=2, dilation=2, padding_mode="replicate"),
                nn.ReLU(),
                nn.Conv2d(self.width, 1, 1),
            )
        nn.init.zeros_(network[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(network[-1].bias)  # type: ignore[arg-type]
        return network

    def _fit(self, samples: Samples) -> None:
        if samples.logits.dim() != 4:
            raise ValueError(
                f"LocalTemperatureScaling is for dense predictions (N, K, H, W), got logits of shape "
                f"{tuple(samples.logits.shape)}; use TemperatureScaling"
            )
        device = samples.logits.device
        self.temperature_ = torch.tensor(optimal_temperature(samples), dtype=torch.float64, device=device)
        self.network = network = self._build(samples.logits.shape[1]).to(device)
        optimizer = torch.optim.Adam(network.parameters(), self.lr)
        order = torch.Generator().manual_seed(self.seed)
        best, kept = mean_nll(samples, self._map), {k: v.clone() for k, v in network.state_dict().items()}
        for _ in range(self.epochs):
            for some in torch.randperm(len(samples.logits), generator=order).split(self.batch_size):
                logits, target, keep = (part[some.to(device)] for part in samples[:3])
                if not bool(keep.any()):
                    continue
                with torch.enable_grad():
                    loss = functional.nll_loss(self._map(logits), target.where(keep, -100), ignore_index=-100)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            nll = mean_nll(samples, self._map)
            if nll < best:
                best, kept = nll, {k: v.clone() for k, v in network.state_dict().items()}
        network.load_state_dict(kept)
        network.requires_grad_(requires_grad=False)

    def temperatures(self, logits: Tensor) -> Tensor:
        """The temperature of each pixel, ``(N, 1, H, W)``."""
        self._check_fitted(logits)
        assert self.network is not None  # noqa: S101
        logits = finite(logits)
        ratio: Tensor = self.network(logits.log_softmax(dim=1).clamp(min=-20).float())
        return self.temperature_.to(logits.dtype) * ratio.to(logits.dtype).clamp(-3, 3).exp()

    def _calibrate(self, logits: Tensor) -> Tensor:
        return (logits / self.temperatures(logits)).log_softmax(dim=1)

    def _prepare_to_load(self, state: dict[str, Tensor]) -> None:
        super()._prepare_to_load(state)
        assert self.num_classes is not None  # noqa: S101
        found = tuple(state["network.0.weight"].shape)
        if found[:2] != (self.width, self.num_classes):  # before anything of that size is allocated
            raise ValueError(f"width {self.width} and {self.num_classes} classes do not fit the state, which is for {found}")
        self.network = self._build(self.num_classes).requires_grad_(requires_grad=False)
