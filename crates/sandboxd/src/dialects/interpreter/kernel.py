# A Python kernel on the standard library alone. It reads one JSON object per line from its first descriptor and answers
# each with lines on its second one: "E" and an event for the client, and "D" when the run is done.

import ast
import asyncio
import base64
import builtins
import importlib.abc
import importlib.machinery
import inspect
import io
import json
import linecache
import os
import pprint
import signal
import subprocess
import sys
import threading
import time
import traceback
import types

OWN_FILE = "<kernel>"
# Longer text in one message is split, so that a client sees the output as it comes.
CHUNK = 64 * 1024
MIME_MEMBERS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
REPRESENTATIONS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


class StdinNotImplementedError(NotImplementedError):
    pass


class Wire:
    """The connection to the daemon. Whole lines only, from any thread."""

    def __init__(self):
        # Programs that the code starts inherit neither descriptor.
        self.requests = os.fdopen(os.dup(0), "rb")
        self.responses = os.dup(1)
        self.lock = threading.RLock()
        self.running = False
        # Output that is not sent yet: its stream, and when it was written.
        self.pending, self.pending_stream, self.pending_since = "", None, 0.0

    def line(self, kind, value):
        data = (kind + json.dumps(value, default=str) + "\n").encode("ascii")
        with self.lock:
            while data:
                data = data[os.write(self.responses, data):]

    def event(self, kind, **members):
        with self.lock:
            self.send_pending()
            # Output between two runs has no client.
            if self.running:
                self.line("E", {"type": kind, **members})

    def text(self, stream, text):
        """Output, sent by lines and at least five times a second."""
        with self.lock:
            if stream != self.pending_stream:
                self.send_pending()
            if not self.pending:
                self.pending_since = time.monotonic()
            self.pending, self.pending_stream = self.pending + text, stream
            if "\n" in text or len(self.pending) > CHUNK or time.monotonic() - self.pending_since > 0.2:
                self.send_pending()

    def send_pending(self):
        with self.lock:
            text, self.pending = self.pending, ""
            for start in range(0, len(text) if self.running else 0, CHUNK):
                part = text[start:start + CHUNK]
                self.line("E", {"type": self.pending_stream, "text": part, "timestamp": time.time_ns()})


class Output(io.TextIOBase):
    """Standard output or error of the code. `buffer` and `fileno` lead to the redirected descriptor."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, wire, name, descriptor):
        self.wire = wire
        self.name = f"<{name}>"
        self.stream = name
        self.descriptor = descriptor
        self.buffer = os.fdopen(os.dup(descriptor), "wb", buffering=0)

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return self.descriptor

    def flush(self):
        self.wire.send_pending()

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.wire.text(self.stream, text)
        return len(text)


class Redirection:
    """Descriptor 1 or 2 as a pipe, so that output of programs that the code starts is seen, too."""

    def __init__(self, wire, name, descriptor):
        self.wire, self.name, self.descriptor = wire, name, descriptor
        self.marker = f"\0{os.urandom(16).hex()}\0".encode()
        self.passed = threading.Event()
        reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        threading.Thread(target=self.pump, args=(reader,), daemon=True).start()

    def pump(self, reader):
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = b""
        while data := os.read(reader, CHUNK):
            pending += data
            before, found, after = pending.partition(self.marker)
            if found:
                self.wire.text(self.name, decoder.decode(before))
                self.passed.set()
                pending = after
                continue
            # The start of a marker may be at the end.
            keep = next((n for n in range(min(len(pending), len(self.marker) - 1), 0, -1)
                         if self.marker.startswith(pending[-n:])), 0)
            ready, pending = pending[:len(pending) - keep], pending[len(pending) - keep:]
            self.wire.text(self.name, decoder.decode(ready))

    def flush(self):
        """Waits until everything that was written so far is sent."""
        self.passed.clear()
        os.write(self.descriptor, self.marker)
        self.passed.wait(2)


def plain(value):
    text = repr(value)
    if len(text) > 79 and isinstance(value, (dict, list, tuple, set, frozenset)):
        text = pprint.pformat(value, width=79, sort_dicts=False)
    return text


def encoded(mime, value):
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if mime.startswith("image/") and isinstance(value, str) and mime != "image/svg+xml":
        return value.replace("\n", "")
    return value


def representations(value):
    """Every form of a value that a client may show, by MIME type."""
    bundle = {}
    kind = type(value)
    full = getattr(kind, "_repr_mimebundle_", None)
    if full is not None:
        try:
            found = value._repr_mimebundle_()
            bundle.update(found[0] if isinstance(found, tuple) else found or {})
        except NotImplementedError:
            pass
    for method, mime in REPRESENTATIONS.items():
        if mime in bundle or isinstance(value, type) or not callable(getattr(kind, method, None)):
            continue
        try:
            found = getattr(value, method)()
        except NotImplementedError:
            continue
        except Exception:
            traceback.print_exc()
            continue
        if isinstance(found, tuple):
            found = found[0]
        if found is not None:
            bundle[mime] = found
    figure = sys.modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, figure.Figure):
        bundle.setdefault("image/png", figure_png(value))
    frames = sys.modules.get("pandas")
    if frames is not None and isinstance(value, frames.DataFrame):
        try:
            bundle.setdefault("e2b/data", json.loads(value.to_json(orient="split", date_format="iso")))
            split = bundle["e2b/data"]
            columns = {str(name): [row[index] for row in split["data"]] for index, name in enumerate(split["columns"])}
            bundle["e2b/data"] = columns
        except Exception:
            bundle.pop("e2b/data", None)
    bundle.setdefault("text/plain", plain(value))
    return bundle


def result(wire, bundle, main):
    members, extra = {}, {}
    for mime, value in bundle.items():
        value = encoded(mime, value)
        member = MIME_MEMBERS.get(mime)
        if member is None:
            extra[mime] = value
        else:
            members[member] = value
    text = members.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        members["text"] = text[1:-1]
    if extra:
        members["extra"] = extra
    wire.event("result", is_main_result=main, **members)


def figure_png(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    data = io.BytesIO()
    canvas = figure.canvas
    if not hasattr(canvas, "print_png"):
        FigureCanvasAgg(figure)
    figure.savefig(data, format="png", bbox_inches="tight")
    return data.getvalue()


def show_figures(wire):
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or pyplot.get_backend() != Finder.BACKEND:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        result(wire, {"image/png": figure_png(figure), "text/plain": repr(figure)}, False)
    pyplot.close("all")


def shown(wire, *values, **options):
    for value in values:
        raw = options.get("raw") and isinstance(value, dict)
        result(wire, value if raw else representations(value), False)


class Finder(importlib.abc.MetaPathFinder):
    """Prepares two libraries as they are imported: matplotlib draws results, and IPython's `display` shows them."""

    BACKEND = "module://sandbox_inline_figures"

    def __init__(self, wire):
        self.wire = wire

    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib.pyplot" and "MPLBACKEND" not in os.environ:
            self.use_inline_figures()
        elif name == "IPython.core.display_functions":
            return self.patched(importlib.machinery.PathFinder.find_spec(name, path))
        elif name == "IPython" and importlib.machinery.PathFinder.find_spec(name) is None:
            return importlib.machinery.ModuleSpec(name, Shim(self.wire), is_package=True)
        elif name == "IPython.display" and isinstance(sys.modules["IPython"].__spec__.loader, Shim):
            return importlib.machinery.ModuleSpec(name, Shim(self.wire))
        return None

    def use_inline_figures(self):
        import matplotlib
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        backend = types.ModuleType("sandbox_inline_figures")
        backend.FigureCanvas = FigureCanvasAgg
        backend.FigureManager = FigureManagerBase
        backend.show = lambda *args, **options: show_figures(self.wire)
        sys.modules["sandbox_inline_figures"] = backend
        matplotlib.rcParams["backend"] = self.BACKEND

    def patched(self, spec):
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.display = lambda *values, **options: shown(self.wire, *values, **options)
            module.publish_display_data = lambda data, *rest, **options: result(self.wire, data, False)

        spec.loader.exec_module = exec_module
        return spec


class Shim(importlib.abc.Loader):
    """The part of `IPython.display` that programs use, for sandboxes without IPython."""

    def __init__(self, wire):
        self.wire = wire

    def exec_module(self, module):
        if module.__name__ == "IPython":
            # Libraries ask which version they have to adapt to.
            module.__version__, module.version_info = "8.24.0", (8, 24, 0)
            module.get_ipython = lambda: None
            return

        def of_mime(name, mime, binary=False):
            def __init__(self, data=None, url=None, filename=None, format=None, **options):
                if filename is not None:
                    with open(filename, "rb" if binary else "r") as file:
                        data = file.read()
                self.data, self.url = data, url
                self.mime = "image/jpeg" if format in ("jpg", "jpeg") else mime

            def _repr_mimebundle_(self, **options):
                if self.data is None and self.url:
                    return {"text/html": f'<img src="{self.url}"/>'}
                return {self.mime: self.data}

            return type(name, (), {"__init__": __init__, "_repr_mimebundle_": _repr_mimebundle_})

        module.display = lambda *values, **options: shown(self.wire, *values, **options)
        module.clear_output = lambda *args, **options: None
        for name, mime in (
            ("HTML", "text/html"), ("Markdown", "text/markdown"), ("SVG", "image/svg+xml"), ("Latex", "text/latex"),
            ("JSON", "application/json"), ("Javascript", "application/javascript"),
        ):
            setattr(module, name, of_mime(name, mime))
        module.Image = of_mime("Image", "image/png", binary=True)


def shell(command):
    """A line that begins with an exclamation mark."""
    code = subprocess.call(command, shell=True)
    if code:
        print(f"exit status {code}", file=sys.stderr)


def magic(line):
    name, _, rest = line.partition(" ")
    if name == "pip":
        shell(f"{sys.executable} -m pip {rest}")
    elif name == "cd":
        os.chdir(os.path.expanduser(rest.strip() or "~"))
    elif name not in ("matplotlib", "load_ext", "autoreload", "config"):
        raise NameError(f"%{name} is not known here: this kernel is plain Python, without IPython")


def translated(code):
    """Plain Python for code that has shell lines or magic in it, as notebooks do."""
    if code.lstrip().startswith(("%%bash", "%%sh")):
        return f"__shell__({code.lstrip().partition(chr(10))[2]!r})"
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        indent = line[:len(line) - len(bare)]
        if bare.startswith("!"):
            line = f"{indent}__shell__({bare[1:].strip()!r})"
        elif bare.startswith("%") and bare[1:2].isalpha():
            line = f"{indent}__magic__({bare[1:].strip()!r})"
        lines.append(line)
    return "\n".join(lines)


class Kernel:
    def __init__(self):
        self.wire = Wire()
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        self.redirections = [Redirection(self.wire, "stdout", 1), Redirection(self.wire, "stderr", 2)]
        sys.stdin = open(os.devnull)
        sys.stdout = Output(self.wire, "stdout", 1)
        sys.stderr = Output(self.wire, "stderr", 2)
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        sys.argv = [""]
        if "" not in sys.path:
            sys.path.insert(0, "")
        self.names = self.module.__dict__
        display = lambda *values, **options: shown(self.wire, *values, **options)  # noqa: E731
        self.names.update(__builtins__=builtins, display=display, __shell__=shell, __magic__=magic, Out={})
        builtins.input = self.refuse_input
        sys.meta_path.insert(0, Finder(self.wire))
        self.loop = None
        self.count = 0

    @staticmethod
    def refuse_input(prompt=""):
        raise StdinNotImplementedError("input() is not available: code runs here without a keyboard")

    def interrupt(self, number, frame):
        if self.wire.running:
            raise KeyboardInterrupt

    def serve(self):
        for line in self.wire.requests:
            request = json.loads(line)
            signal.signal(signal.SIGINT, self.interrupt)
            try:
                self.run(request)
            except KeyboardInterrupt:
                # Arrived while the run was being finished.
                pass
            self.wire.running = False
            self.wire.line("D", {})

    def run(self, request):
        self.count += 1
        before = dict(os.environ)
        self.wire.running = True
        self.wire.event("number_of_executions", execution_count=self.count)
        try:
            os.environ.update(request.get("env") or {})
            self.execute(request["code"])
            show_figures(self.wire)
        except BaseException as error:
            self.report(error)
        finally:
            for name in set(os.environ) - set(before):
                if name in (request.get("env") or {}):
                    del os.environ[name]
            for name in request.get("env") or {}:
                if name in before:
                    os.environ[name] = before[name]
            for redirection in self.redirections:
                redirection.flush()
            self.wire.send_pending()

    def execute(self, code):
        name = f"<cell {self.count}>"
        try:
            tree = ast.parse(code, name)
        except SyntaxError:
            tree = None
        if tree is None:
            code = translated(code)
            tree = ast.parse(code, name)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.evaluate(tree, name, "exec")
        if last is None:
            return
        value = self.evaluate(ast.Expression(last.value), name, "eval")
        if value is not None and not self.ends_with_semicolon(code):
            self.names["_"] = self.names["Out"][self.count] = value
            result(self.wire, representations(value), True)

    @staticmethod
    def ends_with_semicolon(code):
        lines = [line.strip() for line in code.rstrip().split("\n")]
        return lines[-1].endswith(";")

    def evaluate(self, tree, name, mode):
        compiled = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            value = self.loop.run_until_complete(value)
        return value

    def report(self, error):
        # The place of a syntax error is in the error itself.
        trace = None if isinstance(error, SyntaxError) else error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == OWN_FILE:
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        self.wire.event("error", name=type(error).__name__, value=str(error), traceback="".join(lines))


Kernel().serve()
