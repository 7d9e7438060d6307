"""What runs inside a sandbox. It is sent in as text, imports the standard library only, and knows
neither tests nor expected values.

One frame is four bytes of length and that many bytes of JSON. After the interpreter is up the guest
says {"ready": true} and waits. Roles:

* solution: runs the model's program, then answers calls {"call": name, "args": [...]} with
{"value": ...} or {"error": ...}.
* script: runs the program with the given standard input; its standard output goes to the trusted
side as it is.
* tests: runs a benchmark's test program, in which the names the solution must provide are proxies
that send literals out and get literals
  back; reports one verdict per test. It never holds the solution's program.

Values travel as `encode` writes them: JSON with a tag for whatever JSON lacks. An object of any
other type stays where it is and travels as a handle, which compares equal to nothing but itself.
"""

import sys

HANDLE = "handle"


def encode(value: object, depth: int = 0) -> object:
    """A value as JSON data. Types are decided by the real type, so a class that claims to be equal
    to everything is sent as a handle."""
    import collections
    import math

    if depth > 50:
        raise ValueError("nested too deeply")
    kind = type(value)
    deeper = depth + 1
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex() if math.isfinite(value) else repr(value)}
    if kind is list:
        return [encode(item, deeper) for item in value]
    if kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item, deeper) for item in value]}
    if kind in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
        return {
            kind.__name__: [[encode(k, deeper), encode(v, deeper)] for k, v in dict.items(value)]
        }
    if kind is collections.deque:
        return {"deque": [encode(item, deeper) for item in value]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is Opaque:
        return {HANDLE: value._number}
    if kind is Provided:
        return {"name": value.provided_name}
    if kind is type and value in TYPES.values():
        return {"type": value.__name__}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"tuple": [encode(item, deeper) for item in tuple.__iter__(value)]}
    for base in (bool, int, float, str):
        if isinstance(value, base) and kind.__module__ != "builtins":
            return encode(
                base.__new__(base, value) if base is not str else str.__str__(value), deeper
            )
    if kind.__name__ in (
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
    ):
        return {"iterator": [encode(item, deeper) for _, item in zip(range(100_000), value)]}  # noqa: B905
    HANDLES.append(value)
    return {HANDLE: len(HANDLES) - 1}


def decode(data: object) -> object:
    """The value of `encode`'s data. In the tests' role a handle is an opaque object; in the
    solution's it is the object itself."""
    import collections

    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, inner),) = data.items()
    if tag == "int":
        return int(inner, 16)
    if tag == "float":
        return float.fromhex(inner)
    if tag == "complex":
        return complex(decode(inner[0]), decode(inner[1]))
    if tag in ("bytes", "bytearray"):
        return (bytes if tag == "bytes" else bytearray).fromhex(inner)
    if tag in ("dict", "OrderedDict", "Counter", "defaultdict"):
        pairs = {decode(key): decode(value) for key, value in inner}
        kinds = {
            "dict": dict,
            "OrderedDict": collections.OrderedDict,
            "Counter": collections.Counter,
        }
        return kinds[tag](pairs) if tag in kinds else collections.defaultdict(None, pairs)
    if tag == "iterator":
        return iter([decode(item) for item in inner])
    if tag == "range":
        return range(*inner)
    if tag == "name":
        return PROGRAM[inner]
    if tag == "type":
        return TYPES[inner]
    if tag == HANDLE:
        return HANDLES[inner] if ROLE == "solution" else OPAQUE.setdefault(inner, Opaque(inner))
    kinds = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
    return kinds[tag](decode(item) for item in inner)


class Opaque:
    """An object that stayed in the solution's process. The tests can pass it on, read and set its
    attributes."""

    def __init__(self, number):
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return CALL[0]("getattr", (self, name), {})

    def __setattr__(self, name, value):
        CALL[0]("setattr", (self, name, value), {})


class Provided:
    """A name of the solution's, as the tests see it: it can be called, and passed back as an
    argument."""

    def __init__(self, name, call):
        self.provided_name, self.provided_call = name, call

    def __call__(self, *arguments, **keywords):
        return self.provided_call(self.provided_name, arguments, keywords)


TYPES = {
    kind.__name__: kind
    for kind in (int, float, str, bool, list, tuple, dict, set, frozenset, bytes, complex)
}
ROLE = ""
PROGRAM: dict = {}
CALL: list = []
HANDLES: list = []
OPAQUE: dict = {}


def main(uid, packages):
    """Prepares everything that costs time, then waits for a job. Standard input and output become
    the private channel.

    packages: folders of installed packages, for trusted programs that handle untrusted text; a
    model's program sees none.
    """
    import builtins
    import collections  # noqa: F401  (imported now, while no clock runs)
    import json
    import math
    import os
    import resource
    import struct

    reading, writing, nowhere = os.dup(0), os.dup(1), os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)

    def send(message):
        data = json.dumps(message).encode()
        data = struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(writing, data) :]

    def exactly(size):
        parts = []
        while size:
            part = os.read(reading, min(size, 1 << 16))
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive():
        return json.loads(exactly(struct.unpack("<I", exactly(4))[0]))

    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    sys.path.extend(packages)
    send({"ready": True})
    job = receive()
    limits = job["limits"]
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime) + math.ceil(limits["cpu_seconds"])
    for name, value in (
        ("CPU", cpu),
        ("AS", limits["memory"]),
        ("NPROC", limits["processes"]),
        ("FSIZE", limits["file_size"]),
        ("NOFILE", limits["files"]),
        ("CORE", 0),
        ("STACK", 64 << 20),
    ):
        number = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    sys.setrecursionlimit(10_000)
    sys.set_int_max_str_digits(0)
    globals()["ROLE"] = job["role"]
    if job["role"] == "script":
        script(job, os, reading, writing)
    elif job["role"] == "solution":
        solution(job, send, receive)
    else:
        tests(job, send, receive, builtins)


def script(job, os, reading, writing):
    """The program as a whole: standard input from a file, standard output to the trusted side."""
    with open("stdin.txt", "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        file.write(job["stdin"])
    source = os.open("stdin.txt", os.O_RDONLY)
    os.dup2(source, 0)
    os.dup2(writing, 1)
    os.set_inheritable(1, True)
    for fd in (reading, writing, source):
        os.close(fd)
    program = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        exec(compile(job["program"], "solution.py", "exec"), program)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        code = 1
    else:
        code = 0
    try:
        sys.stdout.flush()
    except BaseException:
        code = 1
    os._exit(code & 0xFF)


def solution(job, send, receive):
    """Defines the model's program and answers calls until nobody asks any more."""
    program = PROGRAM
    program.update({"__name__": "solution", "__builtins__": __builtins__})
    try:
        exec(compile(job["program"], "solution.py", "exec"), program)
        send({"loaded": True})
    except BaseException as error:
        send({"error": type(error).__name__})
        return
    while True:
        call = receive()
        try:
            names = call["call"].split(".")
            value = (
                program[names[0]]
                if names[0] in program
                else {"setattr": setattr, "getattr": getattr}[names[0]]
            )
            value = value() if call.get("new") else value
            for name in names[1:]:
                value = getattr(value, name)
            arguments = [decode(item) for item in call["args"]]
            keywords = {key: decode(item) for key, item in call.get("kwargs", {}).items()}
            reply = {"value": encode(value(*arguments, **keywords))}
        except BaseException as error:
            reply = {"error": type(error).__name__}
        send(reply)


def tests(job, send, receive, builtins):
    """Runs the benchmark's own tests against proxies. A test is a program; its verdict is whether
    it ends without an exception."""
    import ast

    def call(name, arguments, keywords):
        send(
            {
                "call": name,
                "args": [encode(a) for a in arguments],
                "kwargs": {k: encode(v) for k, v in keywords.items()},
            }
        )
        reply = receive()
        if "error" in reply:
            kind = getattr(builtins, str(reply["error"]), None)
            raise (
                kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
            )("in the solution")
        return decode(reply["value"])

    CALL.append(call)
    provided = {name: Provided(name, call) for name in job["provides"]}
    for number, text in enumerate(job["tests"]):
        world = {"__name__": "tests", "__builtins__": __builtins__, **provided}
        try:
            exec(compile(job["setup"], "setup.py", "exec"), world)
            world.update(provided)  # the setup may hold a stub of the same name
            exec(compile(ast.parse(text), "test.py", "exec"), world)
            verdict = "passed"
        except AssertionError:
            verdict = "failed"
        except BaseException as error:
            verdict = "error:" + type(error).__name__
        send({"test": number, "verdict": verdict})
    send({"done": True})
