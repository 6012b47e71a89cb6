"""The controls of a network that is not there: devices, a link from a list, or its latency and bandwidth by hand."""

from collections.abc import Callable

import ipywidgets as widgets

from trainlean.costs.links import LINKS, Link

OWN = "your own"
COUNTS = tuple(2**power for power in range(1, 13))  # of devices, up to 4096


class LinkControls(widgets.VBox):
    """Sliders for `devices`, and for the `link` between them; `changed` is called after each move."""

    def __init__(self, changed: Callable[[], None], devices: int = 2, start: Link = LINKS[2]):
        style = {"description_width": "130px"}

        def layout():
            return widgets.Layout(width="450px")

        self.changed, self._quiet = changed, False
        self.devices = widgets.SelectionSlider(
            options=COUNTS, value=2, description="devices", style=style, layout=layout()
        )
        self.preset = widgets.Dropdown(
            options=[*(link.name for link in LINKS), OWN],
            description="link",
            style=style,
            layout=layout(),
        )
        # The sliders are logarithmic: microseconds to a second, kilobytes to terabytes per second.
        self.latency = widgets.FloatLogSlider(
            min=-3,
            max=3,
            step=0.05,
            description="latency (ms)",
            readout_format=".3g",
            style=style,
            layout=layout(),
        )
        self.bandwidth = widgets.FloatLogSlider(
            min=-2,
            max=6,
            step=0.05,
            description="bandwidth (MB/s)",
            readout_format=".3g",
            style=style,
            layout=layout(),
        )
        super().__init__([self.devices, self.preset, self.latency, self.bandwidth])
        self.offer(False, [devices])
        self.devices.value = devices
        self.preset.value = start.name
        self._take_preset()
        self.devices.observe(lambda _: self._tell(), "value")
        self.preset.observe(lambda _: self._take_preset(), "value")
        for slider in (self.latency, self.bandwidth):
            slider.observe(lambda _: self._take_own(), "value")

    @property
    def link(self) -> Link:
        """The chosen link."""
        known = next((link for link in LINKS if link.name == self.preset.value), None)
        return known or Link(self.latency.value / 1e3, self.bandwidth.value * 1e6)

    def offer(self, alone: bool, counts) -> None:
        """Offer these counts of devices as well, and one device (`alone`) where there are runs without communication."""
        was, self._quiet = self.devices.value, True
        self.devices.options = sorted({*COUNTS, *counts, *([1] if alone else [])})
        self.devices.value = was if was in self.devices.options else self.devices.options[0]
        self._quiet = False

    def _take_preset(self):
        if self.preset.value != OWN and not self._quiet:
            self._quiet = True
            self.latency.value, self.bandwidth.value = (
                self.link.latency * 1e3,
                self.link.bandwidth / 1e6,
            )
            self._quiet = False
        self._tell()

    def _take_own(self):
        if not self._quiet:
            self._quiet = True
            self.preset.value = OWN
            self._quiet = False
            self._tell()

    def _tell(self):
        if not self._quiet:
            self.changed()
