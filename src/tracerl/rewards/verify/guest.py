"""What runs inside a sandbox. It is sent in as text, imports the standard library only, and knows
neither tests nor expected values unless its role is to run them.

One frame is four bytes of length and that many bytes of JSON. After the interpreter is up the guest
says {"ready": true} and waits for a job. Roles:

* solution: runs the model's program, then answers requests ({"call": name, "args": [...]}, or
  {"op": name, ...} for what the tests do with its objects) with {"value": ...} or {"error": ...}.
* script: runs the program with the given standard input; its standard output goes to the trusted
  side as it is.
* examiner: runs benchmarks' test programs, one after the other, each in a fork of this process. The
  names that a solution must provide are references: what a test does with them is sent out as a
  request, and a value comes back. It never holds a solution's program.

Values travel as `encode` writes them: JSON with a tag for whatever JSON lacks. An object of any
other type stays where it is and travels as a handle; a function of the tests travels as a callback.
"""

import sys

HANDLE = "handle"
CALLBACK = "callback"
MAX_DEPTH = 50  # of a value
MAX_ITEMS = 100_000  # of an iterator, which is read to its end when it is sent
MAX_TEXT = 10_000  # characters of an exception's message
ITERATORS = [
    "dict_keys",
    "dict_values",
    "dict_items",
    "map",
    "filter",
    "zip",
    "generator",
    "list_iterator",
    "enumerate",
    "reversed",
    "tuple_iterator",
    "set_iterator",
    "chain",
    "permutations",
    "combinations",
    "islice",
]
# Classes whose values travel by what rebuilds them: (module, name) -> the value's parts.
STANDARD = {
    ("fractions", "Fraction"): lambda value: [encode(value.numerator), encode(value.denominator)],
    ("decimal", "Decimal"): lambda value: [str(value)],
    ("datetime", "date"): lambda value: [value.year, value.month, value.day],
    ("datetime", "datetime"): lambda value: [value.isoformat()],
    ("datetime", "time"): lambda value: [value.isoformat()],
    ("datetime", "timedelta"): lambda value: [value.days, value.seconds, value.microseconds],
}
FROM_TEXT = ("datetime", "time")
ROLE = ""
PROGRAM: dict = {}
HANDLES: list = []  # the solution's objects, by number
NUMBERS: dict = {}  # id of such an object -> its number
REFERENCES: dict = {}  # in the tests: number -> the object that stands for it
CALLBACKS: list = []  # functions of the tests that the solution may call, by number
EXCEPTIONS: dict = {}  # in the tests: name of an exception class of the solution -> its stand-in
REQUEST: list = []  # in the tests and in the solution: asks the other side


def encode(value: object, depth: int = 0) -> object:
    """A value as JSON data. Types are decided by the real type, so that an object that claims to
    equal everything is sent as a handle.

    Raises ValueError for a value that is nested too deeply, TypeError for an object of the tests
    that cannot be sent.
    """
    import math

    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex() if math.isfinite(value) else repr(value)}
    if kind is list:
        return encode_all(value, depth + 1)
    for form in (container_data, standard_data, reference_data, derived_data):
        data = form(value, kind, depth + 1)
        if data is not None:
            return data
    return object_data(value)


def encode_all(items, depth=0):
    return [encode(item, depth) for item in items]


def encode_named(items):
    return {name: encode(item) for name, item in items.items()}


def container_data(value, kind, depth):
    """Data of bytes, a complex number, a range or one of Python's own containers, else None."""
    import collections

    if kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind in (tuple, set, frozenset, collections.deque):
        return {kind.__name__: encode_all(value, depth)}
    if kind in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
        pairs = dict.items(value)
        return {kind.__name__: [encode_all(pair, depth) for pair in pairs]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    return None


def standard_data(value, kind, depth):
    """Data of a value of the standard library's classes in `STANDARD`, else None."""
    parts = STANDARD.get((kind.__module__, kind.__qualname__))
    module = sys.modules.get(kind.__module__)
    if parts is None or getattr(module, kind.__qualname__, None) is not kind:
        return None
    return {kind.__qualname__: parts(value)}


def reference_data(value, kind, depth):
    """Data of what belongs to the other side, or that both sides know by name, else None."""
    import builtins

    if kind is Reference:
        return {HANDLE: object.__getattribute__(value, "_number")}
    if kind is Callback:
        return {CALLBACK: value._number}
    if isinstance(value, type):
        if EXCEPTIONS.get(value.__name__) is value:
            return {HANDLE: value._number}
        if shared_class(value.__name__) is value:
            return {"type": value.__name__}
    name = getattr(value, "__name__", None)
    if kind is type(len) and ROLE == "tests" and getattr(builtins, str(name), None) is value:
        return {"builtin": name}
    return None


def derived_data(value, kind, depth):
    """Data of a named tuple, of a number or text of a class of its own, or of an iterator."""
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"tuple": encode_all(tuple.__iter__(value), depth)}
    for base in (bool, int, float, str):
        if isinstance(value, base) and kind.__module__ != "builtins":
            plain = str.__str__(value) if base is str else base.__new__(base, value)
            return encode(plain, depth)
    if kind.__name__ in ITERATORS:
        import itertools

        return {"iterator": encode_all(itertools.islice(value, MAX_ITEMS), depth)}
    return None


def object_data(value):
    """Data of an object that stays on this side."""
    if ROLE == "tests":
        if not callable(value) or isinstance(value, type):
            raise TypeError(f"an object of the tests cannot be sent: {type(value).__name__}")
        CALLBACKS.append(value)
        return {CALLBACK: len(CALLBACKS) - 1}
    if id(value) not in NUMBERS:
        NUMBERS[id(value)] = len(HANDLES)
        HANDLES.append(value)
    return {HANDLE: NUMBERS[id(value)]}


def decode(data: object) -> object:
    """The value of `encode`'s data. In the tests a handle is a reference; in the solution it is the
    object itself."""
    if isinstance(data, list):
        return decode_all(data)
    if not isinstance(data, dict):
        return data
    ((tag, inner),) = data.items()
    if tag == HANDLE:
        return object_of(inner)
    if tag == CALLBACK:
        return CALLBACKS[inner] if ROLE == "tests" else Callback(inner)
    if tag == "type":
        return shared_class(inner)
    if tag == "builtin" and ROLE == "solution":
        import builtins

        return getattr(builtins, inner)
    for (module, name), _ in STANDARD.items():
        if tag == name:
            return standard_value(module, name, inner)
    return plain_value(tag, inner)


def decode_all(items):
    return [decode(item) for item in items]


def decode_named(items):
    return {name: decode(item) for name, item in items.items()}


def plain_value(tag, inner):
    """A number, text or container of Python's own."""
    import collections

    if tag == "int":
        return int(inner, 16)
    if tag == "float":
        return float.fromhex(inner)
    if tag == "complex":
        return complex(decode(inner[0]), decode(inner[1]))
    if tag in ("bytes", "bytearray"):
        return (bytes if tag == "bytes" else bytearray).fromhex(inner)
    if tag == "iterator":
        return iter(decode_all(inner))
    if tag == "range":
        return range(*inner)
    if tag == "defaultdict":
        return collections.defaultdict(None, plain_value("dict", inner))
    if tag in ("dict", "OrderedDict", "Counter"):
        pairs = dict(map(decode_all, inner))
        return pairs if tag == "dict" else getattr(collections, tag)(pairs)
    kinds = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
    return kinds[tag](decode_all(inner))


def standard_value(module, name, parts):
    import importlib

    kind = getattr(importlib.import_module(module), name)
    values = decode_all(parts)
    return kind.fromisoformat(values[0]) if name in FROM_TEXT else kind(*values)


def shared_class(name):
    """A class of Python's own that both sides know by this name, else None."""
    import builtins

    kind = getattr(builtins, str(name), None)
    plain = (int, float, str, bool, list, tuple, dict, set, frozenset, bytes, bytearray, complex)
    known = isinstance(kind, type) and (kind in plain or issubclass(kind, Exception))
    return kind if known else None


def object_of(number):
    """What a handle stands for on this side."""
    if ROLE == "solution":
        return HANDLES[number]
    for kind in EXCEPTIONS.values():
        if kind._number == number:
            return kind
    if number not in REFERENCES:
        REFERENCES[number] = Reference(number)
    return REFERENCES[number]


def ask(op, *arguments, **keywords):
    """What the solution makes of an operation on one of its objects."""
    return REQUEST[0]({"op": op}, arguments, keywords)


def delegate(op):
    """A special method of a reference that asks the solution."""

    def method(self, *arguments):
        return ask(op, self, *arguments)

    return method


def delegate_pair(op):
    """A special method of two operands that asks the solution only if both are its own objects: it
    must not decide how its object compares with a value of the tests."""

    def method(self, other):
        return ask(op, self, other) if type(other) is Reference else NotImplemented

    return method


class Reference:
    """An object that stayed in the solution's process, as the tests see it. They can call it, pass
    it back, read and set its attributes, index, measure and iterate it. Two of them are compared
    and added by the solution; with a value of the tests none is equal."""

    def __init__(self, number):
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__doc__", "__qualname__"):
            raise AttributeError(name)
        return ask("getattr", self, name)

    def __setattr__(self, name, value):
        ask("setattr", self, name, value)

    def __delattr__(self, name):
        ask("delattr", self, name)

    def __call__(self, *arguments, **keywords):
        return ask("call", self, *arguments, **keywords)

    def __exit__(self, kind, error, trace):
        return ask("exit", self)

    def __instancecheck__(self, item):
        return type(item) is Reference and ask("isinstance", item, self)

    def __subclasscheck__(self, kind):
        return type(kind) is Reference and ask("issubclass", kind, self)

    def __format__(self, form):
        return format(str(self), form)


OBJECT_OPERATIONS = "len getitem setitem delitem iter next bool str repr hash enter int float index"
PAIR_OPERATIONS = "eq ne lt le gt ge add sub mul truediv floordiv mod and or xor matmul"


def operations():
    """What the tests may ask of the solution's objects, by name."""
    import operator

    functions = {name.strip("_"): getattr(operator, name) for name in operator.__all__}
    functions.update({"and": operator.and_, "or": operator.or_, "index": operator.index})
    for function in (len, iter, next, bool, str, repr, hash, int, float, isinstance, issubclass):
        functions[function.__name__] = function
    functions.update(getattr=getattr, setattr=setattr, delattr=delattr)
    functions["call"] = lambda function, *arguments, **keywords: function(*arguments, **keywords)
    functions["enter"] = lambda item: item.__enter__()
    functions["exit"] = lambda item: item.__exit__(None, None, None)
    return functions


for op in OBJECT_OPERATIONS.split():
    setattr(Reference, f"__{op}__", delegate(op))
for op in PAIR_OPERATIONS.split():
    setattr(Reference, f"__{op}__", delegate_pair(op))


class Callback:
    """A function of the tests, as the solution sees it."""

    def __init__(self, number):
        self._number = number

    def __call__(self, *arguments, **keywords):
        return REQUEST[0]({CALLBACK: self._number}, arguments, keywords)


class Channel:
    """Frames on standard input and output, which the program itself no longer sees."""

    def __init__(self):
        import os

        self.reading, self.writing = os.dup(0), os.dup(1)
        nowhere = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        os.close(nowhere)

    def send(self, message):
        import json
        import os
        import struct

        data = json.dumps(message).encode()
        data = struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(self.writing, data) :]

    def receive(self):
        import json
        import struct

        return json.loads(self.exactly(struct.unpack("<I", self.exactly(4))[0]))

    def exactly(self, size):
        import os

        parts = []
        while size:
            part = os.read(self.reading, min(size, 1 << 16))
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def main(uid, packages):
    """Prepares everything that costs time, then waits for a job.

    packages: folders of installed packages, for trusted programs that handle untrusted text; a
    model's program sees none.
    """
    import builtins
    import collections  # noqa: F401  (imported now, while no clock runs)
    import os

    channel = Channel()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    sys.path.extend(packages)
    builtins.exit = builtins.quit = leave  # `site`, which makes them, is not imported
    channel.send({"ready": True})
    job = channel.receive()
    if job["role"] == "examiner":
        examiner(job, channel)
        return
    set_limits(job["limits"])
    globals()["ROLE"] = job["role"]
    if job["role"] == "script":
        script(job, channel)
    else:
        solution(job, channel)


def leave(code=None):
    raise SystemExit(code)


def set_limits(limits):
    """Limits of this process and of those that it starts. The soft limit on CPU time is below the
    hard one, so that a program that uses it up ends by SIGXCPU, which says why."""
    import math
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(usage.ru_utime + usage.ru_stime) + math.ceil(limits["cpu_seconds"])
    for name, soft, above in (
        ("CPU", cpu, 1),
        ("AS", limits["memory"], 0),
        ("NPROC", limits["processes"], 0),
        ("FSIZE", limits["file_size"], 0),
        ("NOFILE", limits["files"], 0),
        ("CORE", 0, 0),
        ("STACK", 64 << 20, 0),
        ("MSGQUEUE", 0, 0),
        ("MEMLOCK", 1 << 20, 0),
    ):
        number = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            soft, above = min(soft, hard), min(above, hard - min(soft, hard))
        resource.setrlimit(number, (soft, soft + above))
    sys.setrecursionlimit(10_000)
    sys.set_int_max_str_digits(0)


def program_module(name):
    """A module in which a program runs: what pickles, dataclasses and processes look up by name."""
    import types

    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[name] = module
    return module.__dict__


def script(job, channel):
    """The program as a whole: standard input from a file, standard output to the trusted side."""
    import os

    with open("stdin.txt", "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        file.write(job["stdin"])
    source = os.open("stdin.txt", os.O_RDONLY)
    os.dup2(source, 0)
    os.dup2(channel.writing, 1)
    os.set_inheritable(1, True)
    for fd in (channel.reading, channel.writing, source):
        os.close(fd)
    code = 0
    try:
        exec(compile(job["program"], "solution.py", "exec"), program_module("__main__"))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        code = 1
    os._exit((finish() or code) & 0xFF)


def finish():
    """What Python does before it ends: threads are waited for, exit functions run, output is
    written. 1 if that fails, else 0."""
    import atexit

    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        return 1
    return 0


def solution(job, channel):
    """Defines the model's program and answers requests until nobody asks any more."""
    globals()["PROGRAM"] = program_module("solution")
    try:
        exec(compile(job["program"], "solution.py", "exec"), PROGRAM)
        channel.send({"loaded": True})
    except BaseException as error:
        channel.send({"error": type(error).__name__})
        return
    functions = operations()

    def call_back(request, arguments, keywords):
        channel.send(with_arguments(request, arguments, keywords))
        while "returned" not in (reply := channel.receive()):
            if "raised" in reply:
                raise (shared_class(reply["raised"]) or RuntimeError)(*decode(reply["args"]))
            channel.send(answer(reply, functions))
        return decode(reply["returned"])

    REQUEST.append(call_back)
    while True:
        channel.send(answer(channel.receive(), functions))


def with_arguments(request, arguments, keywords):
    return {**request, "args": encode_all(arguments), "kwargs": encode_named(keywords)}


def answer(request, functions):
    """The reply to one request."""
    try:
        if "describe" in request:
            return {"described": descriptions(request["describe"])}
        arguments = decode_all(request["args"])
        keywords = decode_named(request.get("kwargs", {}))
        value = function_of(request, functions)(*arguments, **keywords)
        reply = {"value": encode(value)}
        if value is None and request.get("op") == "call":
            reply.update(changes(request, arguments))
        return reply
    except BaseException as error:
        return {"error": type(error).__name__, **exception_data(error)}


def function_of(request, functions):
    """The function that a request names."""
    if "op" in request:
        return functions[request["op"]]
    first, *names = request["call"].split(".")
    value = PROGRAM[first]
    if request.get("new"):
        value = value()
    for name in names:
        value = getattr(value, name)
    return value


def descriptions(names):
    """The description of each of these names that the program defines."""
    data = {}
    for name in names:
        if name in PROGRAM:
            data[name] = description(PROGRAM[name])
    return data


def description(value):
    """What the tests must know about a name of the program: its value, or that it is a function or
    class, and which exceptions an exception class derives from. {} if it cannot be sent."""
    if not callable(value):
        try:
            return {"value": encode(value)}
        except Exception:
            return {}
    number = object_data(value)[HANDLE]
    if isinstance(value, type) and issubclass(value, BaseException):
        return {HANDLE: number, "bases": class_names(value)}
    return {HANDLE: number}


def class_names(kind):
    """Of a class and those that it derives from, in the order of attribute lookup."""
    return [base.__name__ for base in kind.__mro__]


def changes(request, arguments):
    """Arguments that a function without result changed in place, by position.

    Only such a function's: the result of another could be compared with the argument that it has
    just emptied.
    """
    changed = {}
    for place, (before, after) in enumerate(zip(request["args"], arguments, strict=True)):
        if type(after) in (list, dict, set, bytearray):
            data = encode(after)
            if data != before:
                changed[str(place)] = data
    return {"changes": changed} if changed else {}


def exception_data(error):
    """What the tests may look at of an exception: its classes, arguments, attributes and message,
    as far as they can be sent."""
    data: dict = {"bases": class_names(type(error))}
    for name, reader in (
        ("args", lambda: encode_all(error.args)),
        ("attributes", lambda: encode_named(vars(error))),
        ("text", lambda: str(error)),
    ):
        try:
            value = reader()
            if len(str(value)) <= MAX_TEXT:
                data[name] = value
        except BaseException:
            continue
    return data


def examiner(job, channel):
    """Runs each job's tests in a fork of this process, which has the modules that tests import.

    After a job everything that the fork left is removed: processes, and files in the two writable
    folders. The frame {"ended": status} is sent only then. Where this process is not alone in a
    sandbox (`job["isolated"]`) it removes nothing and ends after one job.
    """
    import contextlib
    import os
    import signal

    preload()
    sys.modules["pytest"] = stand_in_of_pytest()
    while True:
        task = channel.receive()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                set_limits(job["limits"])
                run_tests(task, channel)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if job["isolated"] and os.uname().nodename == "sandbox" and os.getppid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # whatever this process may signal, itself excluded
            empty_folders()
            channel.send({"ended": status})
        else:
            channel.send({"ended": status})
            return


def preload():
    import importlib

    for name in [
        "ast",
        "bisect",
        "collections",
        "copy",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "os",
        "random",
        "re",
        "string",
        "time",
        "types",
        "typing",
    ]:
        importlib.import_module(name)


class Raises:
    """`pytest.raises`, as far as test files of published sets use it."""

    def __init__(self, kinds, match=None):
        self.kinds, self.match, self.value = kinds, match, None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        import re

        if kind is None:
            raise AssertionError("no exception was raised")
        if not issubclass(kind, self.kinds):
            return False
        self.type, self.value = kind, error
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"the message does not match: {error}")
        return True


def raises(kinds, *call, match=None, **keywords):
    block = Raises(kinds, match)
    if not call:
        return block
    with block:
        call[0](*call[1:], **keywords)
    return block


class Approximately:
    """`pytest.approx`: numbers within a tolerance, and lists, tuples and dicts of them."""

    __hash__ = None

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, value):
        return self.is_near(self.expected, value)

    def is_near(self, expected, value):
        import math

        if isinstance(expected, (list, tuple)):
            return (
                type(value) is type(expected)
                and len(value) == len(expected)
                and all(map(self.is_near, expected, value))
            )
        if isinstance(expected, dict):
            return (
                type(value) is dict
                and value.keys() == expected.keys()
                and all(self.is_near(expected[key], value[key]) for key in expected)
            )
        plain = type(value) in (int, float, complex) and isinstance(expected, (int, float, complex))
        if not plain or isinstance(expected, bool):
            return type(value) is not Reference and expected == value
        if expected != expected or value != value:
            return self.nan_ok and expected != expected and value != value
        if expected == value or math.isinf(abs(expected)) or math.isinf(abs(value)):
            return expected == value
        # With an absolute tolerance alone no relative one holds.
        default = 1e-6 if self.abs is None else 0.0
        relative = (default if self.rel is None else self.rel) * abs(expected)
        return abs(expected - value) <= max(relative, 1e-12 if self.abs is None else self.abs)


def parametrize(names, cases, **options):
    """`pytest.mark.parametrize`: the function, when called, runs all its cases."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function):
        def every(**fixed):
            for case in cases:
                values = (case,) if len(names) == 1 else case
                function(**fixed, **dict(zip(names, values, strict=True)))

        return every

    return decorate


def stand_in_of_pytest():
    import types

    module = types.ModuleType("pytest")
    module.raises, module.approx = raises, Approximately
    module.mark = types.SimpleNamespace(parametrize=parametrize)
    return module


def empty_folders():
    import os
    import shutil

    for folder in ("/tmp", "/dev/shm"):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def run_tests(job, channel):
    """Runs a benchmark's own tests against references. A test is a program; its verdict is whether
    it ends without an exception."""
    import random

    globals()["ROLE"] = "tests"
    random.seed()  # the state that a fork inherits is the same for all
    REQUEST.append(lambda *request: request_value(channel, *request))
    channel.send({"describe": job["provides"]})
    reply = reply_of(channel)["described"]
    # No other name: it would replace one of the tests.
    descriptions = {name: reply[name] for name in job["provides"] if name in reply}
    for name, data in sorted(descriptions.items(), key=lambda item: len(item[1].get("bases", ()))):
        if "bases" in data:
            EXCEPTIONS[name] = exception_class(name, data)
    setup = compile(job["setup"], "setup.py", "exec")
    for number, text in enumerate(job["tests"]):
        verdict = verdict_on(setup, text, descriptions)
        channel.send({"test": number, "verdict": verdict})
        if verdict != "passed" and job["stop_at_failure"]:
            break
    channel.send({"done": True})


def verdict_on(setup, text, descriptions):
    values = {}
    for name, data in descriptions.items():
        if data:
            values[name] = decode(data["value"]) if "value" in data else object_of(data[HANDLE])
    world = {"__name__": "tests", "__builtins__": __builtins__, **values}
    try:
        exec(setup, world)
        world.update(values)  # the setup may hold a stub of the same name
        exec(compile(text, "test.py", "exec"), world)
    except AssertionError:
        return "failed"
    except BaseException as error:
        return "error:" + type(error).__name__
    return "passed"


def reply_of(channel):
    """The next frame of the solution. Ends this process if the trusted side says that there will be
    none."""
    import os

    reply = channel.receive()
    if "abandoned" in reply:
        os._exit(0)
    return reply


def request_value(channel, request, arguments, keywords):
    """Asks the solution, and answers what it asks of the tests' functions meanwhile."""
    channel.send(with_arguments(request, arguments, keywords))
    while True:
        reply = reply_of(channel)
        if CALLBACK not in reply:
            break
        channel.send(call_back_reply(reply))
    if "error" in reply:
        raise solution_error(reply, request.get("op") == "next")
    value = decode(reply["value"])
    if value is None and request.get("op") == "call":
        for place, data in reply.get("changes", {}).items():
            change(arguments[int(place)], decode(data))
    return value


def call_back_reply(request):
    try:
        arguments = decode_all(request["args"])
        keywords = decode_named(request["kwargs"])
        return {"returned": encode(CALLBACKS[request[CALLBACK]](*arguments, **keywords))}
    except Exception as error:
        return {"raised": type(error).__name__, "args": exception_data(error).get("args", [])}


def change(old, new):
    """Makes a container equal to another, keeping the containers inside that are lists in both."""
    if type(old) is not type(new) or type(old) not in (list, dict, set, bytearray):
        raise TypeError("an argument cannot change like that")
    if isinstance(old, list):
        for place in range(min(len(old), len(new))):
            if type(old[place]) is list and type(new[place]) is list:
                change(old[place], new[place])
                new[place] = old[place]
        old[:] = new
    elif isinstance(old, bytearray):
        old[:] = new
    else:
        old.clear()
        old.update(new)


def known_exception(names):
    """The first of these classes that the tests know: a stand-in or one of Python's own."""
    for name in names:
        kind = EXCEPTIONS.get(name) or shared_class(name)
        if kind is not None and issubclass(kind, Exception):
            return kind
    return RuntimeError


def exception_class(name, data):
    """The tests' stand-in for an exception class of the solution."""

    def text(self):
        return self.__dict__.get("_text") or base.__str__(self)

    base = known_exception(data["bases"][1:])
    return type(name, (base,), {"__str__": text, "_number": data[HANDLE]})


def solution_error(reply, may_end):
    """The exception that the solution raised, as the tests see it.

    One that Python's own loops take for an end (StopIteration) becomes a RuntimeError, unless the
    solution's object was asked for its next item (`may_end`).
    """
    kind = known_exception(reply.get("bases", ()))
    if issubclass(kind, StopIteration | StopAsyncIteration) and not may_end:
        kind = RuntimeError
    error = kind.__new__(kind)
    error.args = tuple(decode_all(reply.get("args", ())))
    error.__dict__.update(decode_named(reply.get("attributes", {})))
    if kind.__name__ in EXCEPTIONS and isinstance(reply.get("text"), str):
        error.__dict__["_text"] = reply["text"]
    return error
