# ruff: noqa: E501 (programs as text)
"""Programs that speak the sandbox's private channel themselves and answer every call with a hostile
frame."""

# A program that takes over the channel when it is loaded: it says that it is loaded, then answers
# each call with the next frame of a fuzzer seeded with SEED.
_TAKEOVER = """
import fcntl, os, random, stat, struct

rng = random.Random("SEED")
LIES = True
DESCRIBES = False
DESCRIPTION = b'{"described": {"f": {"handle": 0}}}'
DESCRIBED = struct.pack("<I", len(DESCRIPTION)) + DESCRIPTION
pipes = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISFIFO(os.fstat(fd).st_mode)]
modes = {fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE: fd for fd in pipes}
READING, WRITING = modes[os.O_RDONLY], modes[os.O_WRONLY]
TAGS = ["value", "error", "int", "float", "complex", "bytes", "bytearray", "tuple", "set",
        "frozenset", "dict", "Counter", "defaultdict", "OrderedDict", "deque", "range", "iterator",
        "name", "type", "handle", "callback", "changes", "exception", "Fraction", "Decimal", "date",
        "loaded", "done", "test", "call", "args", "", "\\x00"]

def text(size):
    return "".join(rng.choice('ab"\\\\{}[],:0\\x00\\ud800') for _ in range(rng.randrange(size)))

def data(depth):
    kind = rng.randrange(12 if depth else 8)
    if kind == 0: return rng.choice([None, True, False])
    if kind == 1: return rng.randrange(-3, 20)
    if kind == 2: return rng.choice([2**64, -2**70, 10**400])
    if kind == 3: return rng.choice([0.5, float("nan"), float("inf"), -0.0])
    if kind == 4: return text(8)
    if kind == 5: return rng.choice(["0x10", "inf", "nan", "0x1p+2000", "zz", "ff", "2020-01-01"])
    if kind == 6: return []
    if kind == 7: return {}
    if kind in (8, 9): return [data(depth - 1) for _ in range(rng.randrange(4))]
    if kind == 10: return {rng.choice(TAGS): data(depth - 1)}
    return {rng.choice(TAGS): data(depth - 1) for _ in range(rng.randrange(4))}

def written(value):
    import json
    return json.dumps(value).encode("utf-8", "surrogatepass")

def nested(levels):
    shape = rng.randrange(3)
    inside = b"[" * levels + b"]" * levels if shape == 0 else b'{"a":' * levels + b"0" + b"}" * levels
    if shape == 2: inside = b'{"tuple":[' * levels + b"0" + b"]}" * levels
    return rng.choice([
        inside,
        b'{"value":' + inside + b"}",
        b'{"value":[{"dict":[["name",' + inside + b'],["n",1]]}]}',
        b'{"value":{"set":[' + inside + b"]}}",
        b'{"exception":' + inside + b"}",
    ])

def frame():
    kind = rng.randrange(10)
    if kind == 0: payload = bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
    elif kind == 1: payload = nested(rng.choice([20, 60, 300, 500, 980, 990, 2000, 20000]))
    elif kind == 2: payload = written({"value": data(4)})[: rng.randrange(40)]
    elif kind == 3: payload = written(data(5))
    elif kind == 4: payload = written({"value": [data(1) for _ in range(3000)]})
    elif kind == 5: payload = b'{"value": ' + b"9" * rng.choice([10, 5000, 200000]) + b"}"
    elif kind == 6: payload = written({"error": data(3), "value": data(3)})
    else: payload = written({"value": data(5)})
    size = len(payload)
    if LIES and rng.randrange(40) == 0: size = rng.choice([size + 7, 2**32 - 1, 2**31, 0, max(0, size - 3)])
    return struct.pack("<I", size) + payload

def exactly(size):
    read = b""
    while len(read) < size:
        part = os.read(READING, size - len(read))
        if not part: os._exit(0)
        read += part
    return read

def write(part):
    while part: part = part[os.write(WRITING, part):]

loaded = b'{"loaded": true}'
write(struct.pack("<I", len(loaded)) + loaded)
while True:
    question = exactly(struct.unpack("<I", exactly(4))[0])
    rng.seed("SEED " + question.decode())  # another frame for every test, even in a new sandbox
    write(DESCRIBED if DESCRIBES and b"describe" in question else frame())
"""


def fuzzing_program(seed: str, ends: bool = True) -> str:
    """A program that answers each request with a random, truncated, nested, huge or ill-typed frame.

    ends: also with such as end the talk: of another length than they say, or for an answer to what
    names the program has.
    """
    program = _TAKEOVER.replace("SEED", seed)
    if ends:
        return program
    return program.replace("LIES = True", "LIES = False").replace(
        "DESCRIBES = False", "DESCRIBES = True"
    )


def replying_program(payload: str) -> str:
    """A program that answers every call with the bytes of this Python expression, as one frame."""
    before, _, after = _TAKEOVER.partition("def frame():")
    rest = after.partition("def exactly")[2]
    frame = f"def frame():\n    payload = {payload}\n    return struct.pack('<I', len(payload)) + payload\n"
    return f"{before}{frame}\ndef exactly{rest}"
