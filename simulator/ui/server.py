"""`servecast ui`: a page on this computer with sliders, simulated again at every change (NiceGUI).

It listens on 127.0.0.1 alone and answers only requests addressed to this computer by name or number, so that no
other machine, and no page of another site, can reach it.
"""

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from simulator.errors import ConfigError, ServecastError
from simulator.profiles.gpu import list_gpus
from simulator.profiles.model import WEIGHT_BYTES, list_models
from simulator.report.svg import css_variables
from simulator.ui.cheapest import cheapest
from simulator.ui.model import SLOT_REQUESTS, SLOTS_SHOWN, View, evaluate, shared
from simulator.ui.settings import Settings, settings_from

HOST: Final = "127.0.0.1"
NAMES: Final = (HOST, "localhost")
SLIDERS: Final = (
    ("rate", "traffic [requests/s]", 1, 200, 1),
    ("ttft_ms", "limit on p99 TTFT [ms]", 50, 5000, 50),
    ("tpot_ms", "limit on p99 TPOT [ms]", 5, 200, 1),
    ("replicas", "replicas", 1, 64, 1),
    ("tensor_parallel", "GPUs of a replica (tensor parallel)", 1, 8, 1),
    ("max_num_seqs", "max_num_seqs", 1, 256, 1),
    ("max_num_batched_tokens", "max_num_batched_tokens (0: the engine's)", 0, 16_384, 512),
    ("prompt", "prompt tokens, mean", 50, 6000, 50),
    ("prefix", "system prompt before it, tokens (0: none)", 0, 8000, 50),
    ("output", "output tokens, mean", 10, 1500, 10),
)
"""Setting, label, least, most, step."""
_STYLE: Final = """
.plan-page { max-width: 1180px; margin: 0 auto; width: 100%; }
.plan-page .legend { display: flex; gap: 1rem; font-size: .84rem; }
.plan-page .legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 50%; margin-right: .35rem; }
.plan-page svg { width: 100%; height: auto; color: var(--ink); }
.plan-page .chart svg { max-width: 640px; display: block; margin: 0 auto; }
body { background: var(--page); color: var(--ink); } .q-card { background: var(--paper); color: var(--ink); }
"""


WHOLE: Final = ("replicas", "max_num_seqs", "max_num_batched_tokens", "prompt", "prefix", "output", "tensor_parallel")
"""Settings that are whole numbers."""
MAY_BE_ZERO: Final = ("prefix", "max_num_batched_tokens")
"""Settings for which 0 stands for none, or the engine's own."""


def serve(file: Path | None, port: int, open_browser: bool) -> None:
    """Run the page until interrupted, from a plan or a scenario if given. Raises ConfigError for what the page does not
    show, and when the `ui` extra is not installed."""
    try:
        from nicegui import app, ui
        from starlette.middleware.trustedhost import TrustedHostMiddleware
    except ImportError as error:
        raise ConfigError(f"the local page needs the extra `ui`: pip install -e '.[ui]' in a clone, "
                          f"or pip install 'servecast[ui]' ({error})") from error
    start, prices = settings_from(file)
    _check_free(port)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(NAMES))
    app.add_middleware(OwnOrigin)
    app.on_startup(lambda: print(f"the page is at http://{HOST}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True))

    @ui.page("/")
    def page() -> None:
        Page(start, prices).build(ui)

    ui.run(
        host=HOST,
        port=port,
        title="servecast",
        show=open_browser,
        reload=False,
        favicon="📈",
        dark=None,
        show_welcome_message=False,
    )


def _check_free(port: int) -> None:
    """Raise ConfigError for a port that somebody else listens on."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as error:
            free = "accepted: a port that is free on this computer"
            raise ConfigError(f"--port {port}: {error.strerror}; {free}") from error


class OwnOrigin:
    """Refuses requests and sockets that a page of another site has opened: browsers name it in `Origin`.

    The host name alone does not tell: any page may open a WebSocket to 127.0.0.1 (RFC 6455, 10.2).
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI call."""
        origins = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"origin"]
        if all(is_own(origin, scope) for origin in origins):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"pages of other sites are not answered"})


def is_own(origin: str, scope: Any) -> bool:
    """Whether an Origin is this page: http, a name of this computer, and the port that is asked."""
    try:
        parts = urlsplit(origin)
        server = scope.get("server") or (HOST, None)
        return parts.scheme == "http" and parts.hostname in NAMES and (parts.port or 80) == server[1]
    except ValueError:
        return False


def _widen(slider: Any, value: float) -> None:
    """Let a slider go as far as a value."""
    slider.props["min"], slider.props["max"] = min(slider.props["min"], value), max(slider.props["max"], value)
    slider.update()


class Page:
    """One visitor's page: settings, controls, and what is shown."""

    def __init__(self, start: Settings, prices: dict[str, float]) -> None:
        self.settings, self.prices = start, prices
        self._parts: dict[str, Any] = {"controls": {}}
        self._busy = self._again = False

    def build(self, ui: Any) -> None:
        """Lay the page out and show the first answer."""
        ui.add_css(
            f":root {{ {css_variables(False)} --page: #f6f7f9; --bad: #b3261e; }}"
            f"@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(True)} --page: #101318; "
            f"--bad: #ff8a80; }} }}" + _STYLE
        )
        with ui.column().classes("plan-page"):
            ui.label("servecast").classes("text-h5")
            self._parts["verdict"] = ui.label("Simulating ...").classes("text-h6").mark("verdict").props('id="verdict"')
            if self.settings.note:
                ui.label(self.settings.note).classes("text-caption").props('data-testid="note"')
            self._buttons(ui)
            with ui.row().classes("w-full items-start no-wrap max-md:flex-wrap"):
                self._controls(ui)
                self._results(ui)
        ui.timer(0.05, self.refresh, once=True)

    def _buttons(self, ui: Any) -> None:
        with ui.row().classes("items-center"):
            button = ui.button("Find the cheapest fleet", on_click=self._find).props('data-testid="find"')
            ui.button("Share as YAML", on_click=self._share).props('data-testid="share" outline')
            spinner = ui.spinner().props('data-testid="searching"')
            spinner.visible = False
        self._parts["find"], self._parts["searching"] = button, spinner
        self._parts["answer"] = ui.column().classes("w-full gap-1").props('data-testid="answer"')

    async def _find(self) -> None:
        """Run the small plan of the settings and show its answer."""
        from nicegui import run, ui

        button, spinner, answer = (self._parts[name] for name in ("find", "searching", "answer"))
        button.disable()
        spinner.visible = True
        try:
            found = await run.io_bound(cheapest, self.settings, self.prices)
        finally:
            spinner.visible = False
            button.enable()
        if found is None:  # the server is being stopped
            return
        lines, chosen = found
        answer.clear()
        with answer, ui.card().classes("w-full"):
            for line in lines:
                ui.label(line)
            if chosen is not None:
                ui.button("Show it here", on_click=lambda: self._take(chosen)).props('data-testid="take" flat')

    async def _take(self, chosen: Settings) -> None:
        """Set the controls to the fleet that was found."""
        self.settings = chosen
        for name, control in self._parts["controls"].items():
            value = getattr(chosen, name)
            if "max" in control.props:
                _widen(control, value)
            control.value = value
        await self.refresh()

    def _share(self) -> None:
        """The scenario of what is seen: to read, to copy, to download."""
        from nicegui import ui

        try:
            text = shared(self.settings)
        except ServecastError as error:
            ui.notify(str(error))
            return
        with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
            ui.textarea(value=text).classes("w-full").props('readonly outlined autogrow data-testid="yaml"')
            with ui.row():
                ui.button("Copy", on_click=lambda: ui.clipboard.write(text)).props('data-testid="copy"')
                ui.button("Download", on_click=lambda: ui.download.content(text, "scenario.yaml")).props(
                    'data-testid="download"'
                )
                ui.button("Close", on_click=dialog.close).props('flat data-testid="close"')
        dialog.open()

    def _controls(self, ui: Any) -> None:
        from policies.registry import POLICIES

        models = list(dict.fromkeys([self.settings.model, *list_models()]))
        with ui.card().classes("w-80 max-md:w-full shrink-0"):
            gpus = [gpu.path.stem for gpu in list_gpus() if gpu.name != "unit"]
            gpus = list(dict.fromkeys([self.settings.gpu, *gpus]))
            for name, label, options in (
                ("model", "model", models), ("gpu", "GPU", gpus), ("policy", "policy", list(POLICIES)),
                ("weight_dtype", "weights", list(dict.fromkeys([self.settings.weight_dtype, *WEIGHT_BYTES])))
            ):
                select = ui.select(
                    options, value=getattr(self.settings, name), label=label, on_change=self._setter(name)
                ).classes("w-full").props(f'data-testid="{name}"')
                self._parts["controls"][name] = select
            for name, label, least, most, step in SLIDERS:
                value = getattr(self.settings, name)
                self._number(ui, name, label, (min(least, value), max(most, value), step), value)
            ui.switch("prefix caching", value=self.settings.prefix_caching, on_change=self._setter("prefix_caching")
                      ).props('data-testid="prefix_caching"')  # fmt: skip

    def _number(self, ui: Any, name: str, label: str, span: tuple[float, float, float], value: float) -> None:
        """A slider with a field beside it that takes any number; what one is set to the other shows."""
        shown = ui.label(f"{label}: {value:g}").props(f'data-testid="{name}-label"')
        with ui.row().classes("w-full items-center no-wrap"):
            slider = ui.slider(min=span[0], max=span[1], step=span[2], value=value).classes("grow")
            entry = ui.number(value=value, min=0).classes("w-24 shrink-0")
        slider.props(f'data-testid="{name}" aria-label="{label}"')
        entry.props(f'data-testid="{name}-number" aria-label="{label}, as a number" dense debounce=400')
        set_value = self._setter(name, shown, label)

        async def slid(event: Any) -> None:
            entry.value = event.value
            await set_value(event.value)

        async def typed(event: Any) -> None:
            number = event.value
            if number is None or number < 0 or (number == 0 and name not in MAY_BE_ZERO):
                return  # half typed
            _widen(slider, number)
            slider.value = int(number) if name in WHOLE else number

        slider.on_value_change(slid)
        entry.on_value_change(typed)
        self._parts["controls"][name] = slider

    def _results(self, ui: Any) -> None:
        with ui.column().classes("grow min-w-0 w-full"):
            with ui.card().classes("w-full"):
                self._parts["numbers"] = ui.grid(columns="repeat(auto-fit, minmax(140px, 1fr))").classes("w-full")
            slots = f"Slots over time: first {SLOT_REQUESTS} requests, at most {SLOTS_SHOWN} slots"
            for name, title in (("curve", "Latency against rate"), ("slots", slots)):
                with ui.card().classes("w-full"):
                    ui.label(title).classes("text-subtitle1")
                    html = ui.html("", sanitize=False).classes("w-full" if name == "slots" else "w-full chart")
                    self._parts[name] = html.props(f'data-testid="{name}"')

    def _setter(self, name: str, shown: Any = None, label: str = "") -> Any:
        async def changed(event: Any) -> None:
            value: Any = getattr(event, "value", event)
            value = int(value) if name in WHOLE else value
            if shown is not None:
                shown.text = f"{label}: {value:g}"
            if value == getattr(self.settings, name):
                return
            changes: dict[str, Any] = {name: value}
            if name == "gpu":
                changes["price"] = self.prices.get(value)
            self.settings = replace(self.settings, **changes)
            await self.refresh()

        return changed

    async def refresh(self) -> None:
        """Simulate the latest settings; changes that come meanwhile are answered once, by the last of them."""
        from nicegui import run

        self._again = True
        if self._busy:
            return
        self._busy = True
        try:
            while self._again:
                self._again = False
                view = await run.io_bound(evaluate, self.settings)
                if view is not None:  # None: the server is being stopped
                    self._show(view)
        finally:
            self._busy = False

    def _show(self, view: View) -> None:
        from nicegui import ui

        verdict = self._parts["verdict"]
        if view.error:
            verdict.text = f"Cannot run: {view.error}"
            return
        verdict.text = (
            "Overloaded: more arrives than is served"
            if view.overloaded
            else "Meets both limits"
            if view.meets
            else "Misses a limit"
        )
        verdict.style(f"color: {'var(--l2)' if view.meets else 'var(--bad)'}")
        self._parts["numbers"].clear()
        with self._parts["numbers"]:
            for label, value in view.lines:
                with ui.column().classes("gap-0"):
                    ui.label(label).classes("text-caption")
                    ui.label(value).classes("text-subtitle1").props(f'data-testid="{label.replace(" ", "-")}"')
        self._parts["curve"].content, self._parts["slots"].content = view.curve, view.slots
