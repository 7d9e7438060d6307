"""Laws of assert tests: they see the values that the program made, as in plain Python, and no value
decides for itself what it equals."""

import pytest

from tracerl.rewards.verify.code import CodeTests, run_tests
from tracerl.rewards.verify.sandbox import Limits, SandboxError, SandboxPool, Use, check_backend

LIMITS = Limits(
    cpu_seconds=2.0,
    wall_seconds=4.0,
    memory=512 << 20,
    processes=16,
    file_size=1 << 20,
    files=64,
    output=1 << 18,
)

try:
    check_backend("bubblewrap")
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def pool():
    pool = SandboxPool("bubblewrap", LIMITS, 1)
    yield pool
    pool.close()


def verdict(pool, program, test, setup=""):
    """The verdict on one test, whose setup imports everything that the cases need."""
    provides = ("f", "g", "Point", "Odd", "Colour", "LIMIT")
    tests = CodeTests(style="assert", tests=[test], provides=provides, setup=SETUP + setup)
    return run_tests(pool, program, tests)[0]


SETUP = """
import datetime, itertools
from decimal import Decimal
from fractions import Fraction
"""
STANDARD = """
import datetime
from decimal import Decimal
from fractions import Fraction
def f(x):
    return x
"""


@pytest.mark.parametrize(
    ("made", "equal", "other"),
    [
        ("Fraction(2, 6)", "Fraction(1, 3)", "Fraction(1, 2)"),
        ("Decimal('1.50')", "Decimal('1.5')", "Decimal('1.51')"),
        ("datetime.date(2020, 2, 29)", "datetime.date(2020, 2, 29)", "datetime.date(2020, 3, 1)"),
        (
            "datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)",
            "datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)",
            "datetime.datetime(2020, 1, 2, 3, 4, 5, 6)",
        ),
        ("datetime.time(1, 2)", "datetime.time(1, 2)", "datetime.time(1, 3)"),
        (
            "datetime.timedelta(1, 2)",
            "datetime.timedelta(hours=24, seconds=2)",
            "datetime.timedelta(2)",
        ),
        ("[Fraction(1, 3), {Decimal(1): (1,)}]", "[Fraction(1, 3), {Decimal(1): (1,)}]", "[]"),
        ("10 ** 400", "10 ** 400", "10 ** 400 + 1"),
    ],
)
def test_values_of_the_standard_library_are_compared_as_values(pool, made, equal, other):
    program = f"{STANDARD}def f(): return {made}"
    assert verdict(pool, program, f"assert f() == {equal}") == "passed"
    assert verdict(pool, program, f"assert f() == {other}") == "failed"
    back = f"{STANDARD}def f(x): return x"
    assert verdict(pool, back, f"assert f({made}) == {equal} and type(f({made})) is type({equal})")


POINT = """
from enum import Enum
LIMIT = [1, {"a": 2}]
class Colour(Enum):
    RED = 1
    BLUE = 2
class Point:
    unit = 3
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self):
        return hash((self.x, self.y))
    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)
    def __lt__(self, other):
        return self.x < other.x
    def __len__(self):
        return 2
    def __getitem__(self, place):
        return (self.x, self.y)[place]
    def __iter__(self):
        return iter((self.x, self.y))
    def __repr__(self):
        return f"Point({self.x}, {self.y})"
    def __bool__(self):
        return self.x != 0
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.x = 100
    def moved(self, by, *, twice=False):
        return Point(self.x + by * (1 + twice), self.y)
    def fill(self, items):
        items.append(self.x)
    @staticmethod
    def origin():
        return Point(0, 0)
class g:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n
def f(x):
    return Point(x, 2)
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == Point(1, 2) and f(1) != Point(1, 3)",
        "assert f(1) < f(2) and sorted([f(2), f(1)]) == [f(1), f(2)]",
        "assert f(1) + Point(1, 1) == Point(2, 3)",
        "assert len({f(1), f(1), f(2)}) == 2",
        "assert len(f(1)) == 2 and f(7)[0] == 7 and list(f(7)) == [7, 2] and 7 in f(7)",
        "assert str(f(1)) == 'Point(1, 2)' and f'{f(1)}' == 'Point(1, 2)'",
        "assert f(1) and not f(0)",
        "assert f(1).moved(2, twice=True).x == 5 and Point.origin().y == 0 and Point.unit == 3",
        "assert isinstance(f(1), Point) and not isinstance(3, Point)",
        "p = f(1)\np.x = 9\nassert p == Point(9, 2)\ndel p.x\nassert not hasattr(p, 'x')",
        "p = f(1)\nwith p as q:\n    assert q is p and q.x == 1\nassert p.x == 100",
        "items = []\nf(3).fill(items)\nassert items == [3]",
        "assert [c.name for c in Colour] == ['RED', 'BLUE'] and Colour(1) is Colour.RED",
        "assert LIMIT == [1, {'a': 2}]",
        "assert list(g(3)) == [2, 1, 0] and next(g(9)) == 8",
        "assert list(itertools.islice(g(10 ** 9), 2)) == [999999999, 999999998]",
        "n = g(1)\nnext(n)\ntry:\n    next(n)\nexcept StopIteration: pass\nelse:\n    assert False",
    ],
)
def test_objects_of_the_programs_own_classes_behave_as_in_plain_python(pool, test):
    assert verdict(pool, POINT, test) == "passed"
    exec(POINT + SETUP + test, {"__name__": "plain"})


def test_a_setup_may_use_what_the_program_provides_and_hold_stubs_of_it(pool):
    setup = "def f(x): pass\nstart = Point(3, 4)\nstart.x = LIMIT[0]\n"
    assert verdict(pool, POINT, "assert start == Point(1, 4) and f(5).x == 5", setup) == "passed"


ANYTHING = """
class Anything:
    def yes(self, *arguments): return True
    def zero(self, *arguments): return 0.0
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __ror__ = yes
    __sub__ = __rsub__ = __abs__ = __float__ = zero
    def __hash__(self): return 0
    def __iter__(self): return iter(())
def f(x):
    return Anything()
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 5",
        "assert 5 == f(1)",
        "assert not (f(1) != 5)",
        "assert f(1) < 5",
        "assert abs(f(1) - 3.5) < 1e-6",
        "assert abs(3.5 - f(1)) < 1e-6",
        "assert 5 in f(1)",
        "assert f(1) in [5, 6]",
        "assert [f(1)] == [5]",
        "assert {1: f(1)} == {1: 5}",
    ],
)
def test_an_object_never_decides_how_it_compares_with_a_value_of_the_tests(pool, test):
    assert verdict(pool, ANYTHING, test) in ("failed", "error")


ERRORS = """
class Odd(ValueError):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code
class g(Odd):
    def __str__(self):
        return f"g: {self.code}"
def f(x):
    if x == 0:
        raise ValueError("plain", x)
    if x == 1:
        raise Odd("odd one", 7)
    if x == 2:
        raise g("hidden", 8)
    raise {}[x]
"""


@pytest.mark.parametrize(
    "test",
    [
        "try: f(0)\nexcept ValueError as e: assert e.args == ('plain', 0)\nelse: assert False",
        "try: f(1)\nexcept Odd as e: assert (str(e), e.code) == ('odd one', 7)\nelse: assert False",
        "try: f(1)\nexcept ValueError as e: assert 'odd' in str(e)\nelse: assert False",
        "try: f(2)\nexcept Odd as e: assert str(e) == 'g: 8'\nelse: assert False",
        "try: f(3)\nexcept KeyError as e: assert str(e) == '3'\nelse: assert False",
    ],
)
def test_exceptions_keep_their_class_message_and_attributes(pool, test):
    assert verdict(pool, ERRORS, test) == "passed"
    exec(ERRORS + test, {"__name__": "plain"})


def test_an_exception_of_another_class_is_not_caught(pool):
    assert verdict(pool, ERRORS, "try: f(1)\nexcept KeyError: pass") == "error"
    assert verdict(pool, ERRORS, "try: f(3)\nexcept Odd: pass") == "error"


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): x.sort()", "x = [3, 1]\nf(x)\nassert x == [1, 3]"),
        (
            "def f(x): x[0][0] = 9",
            "x = [[1], [2]]\ny = x[0]\nf(x)\nassert x == [[9], [2]] and y == [9]",
        ),
        ("def f(x): x['b'] = 1", "x = {'a': 0}\nf(x)\nassert x == {'a': 0, 'b': 1}"),
        ("def f(x): x.discard(1)", "x = {1, 2}\nf(x)\nassert x == {2}"),
        (
            "def f(x, y): y.extend(x); x.clear()",
            "x, y = [1], [2]\nf(x, y)\nassert (x, y) == ([], [2, 1])",
        ),
        ("def f(x): del x[1:]", "x = [1, 2, 3]\nf(x)\nassert x == [1]"),
    ],
)
def test_a_function_without_result_changes_its_arguments_in_place(pool, program, test):
    assert verdict(pool, program, test) == "passed"
    assert verdict(pool, "def f(*x): pass", test) == "failed"


def test_a_function_with_a_result_does_not_change_what_it_is_compared_with(pool):
    program = "def f(x):\n    x.clear()\n    return []"
    assert verdict(pool, program, "x = [3, 1]\nassert f(x) == sorted(x)") == "failed"


@pytest.mark.parametrize(
    "test",
    [
        "assert f(lambda x: x + 1, [1, 2]) == [2, 3]",
        "assert f(len, ['a', 'bc']) == [1, 2]",
        "assert f(str.upper, ['a']) == ['A']",
        "assert f(lambda x: f(lambda y: x * y, [5]), [1, 2]) == [[5], [10]]",
        "calls = []\nf(calls.append, [1, 2])\nassert calls == [1, 2]",
        "def bad(x): raise KeyError(x)\ntry: f(bad, [4])\nexcept KeyError as e: assert e.args == "
        "(4,)\n"
        "else: assert False",
        "assert g(3)(4) == 7",
        "h = lambda x: x\nassert g(h) is h",
    ],
)
def test_functions_are_arguments_and_results(pool, test):
    program = "def f(h, items): return [h(x) for x in items]\n"
    program += "def g(n): return (lambda x: n + x) if isinstance(n, int) else n"
    assert verdict(pool, program, test) == "passed"


@pytest.mark.parametrize("kind", ["StopIteration", "Odd", "StopAsyncIteration", "GeneratorExit"])
@pytest.mark.parametrize(
    "test",
    [
        "assert all(a == b for a, b in zip(map(f, [1, 2]), [3, 4]))",
        "assert list(map(f, [1])) == []",
        "assert [*map(f, [1, 2])] in ([], [3, 4])",
        "assert next((f(x) for x in [1]), 5) == 5",
    ],
)
def test_an_exception_of_the_program_ends_no_loop_of_the_tests(pool, kind, test):
    program = f"class Odd(StopIteration): pass\ndef f(x): raise {kind}"
    assert verdict(pool, program, test) == "error"


def test_a_tests_own_object_is_refused_as_an_argument_and_says_so(pool):
    test = "class Node:\n    value = 3\nassert f(Node()) == 3"
    assert verdict(pool, "def f(x): return x.value", test) == "error"


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(1)\nexit()", "1"),
        ("print(1)\nquit(0)\nprint(2)", "1"),
        ("import sys\nprint(1)\nsys.exit()", "1"),
        (
            "from multiprocessing import Pool\ndef g(x): return x * x\n"
            "if __name__ == '__main__':\n    with Pool(2) as pool: print(pool.map(g, range(4)))",
            "[0, 1, 4, 9]",
        ),
        ("import threading\nthreading.Thread(target=lambda: print(1)).start()", "1"),
        ("import atexit\natexit.register(print, 1)", "1"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 3\nprint(A())",
            "A(x=3)",
        ),
        ("import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)", "1"),
    ],
)
def test_a_script_runs_as_python_runs_it(pool, program, output):
    tests = CodeTests(style="stdin", tests=[{"input": "", "output": output}])
    assert run_tests(pool, program, tests) == ["passed"]


def test_a_script_that_ends_with_an_error_status_is_an_error(pool):
    tests = CodeTests(style="stdin", tests=[{"input": "", "output": "1"}])
    assert run_tests(pool, "print(1)\nexit(3)", tests) == ["error"]
    assert run_tests(pool, "print(1)\nexit('wrong')", tests) == ["error"]


LEAVING = """
import os, time
open('/tmp/left', 'w').write('x')
os.makedirs('/tmp/folder/below', exist_ok=True)
open('/dev/shm/left', 'w').write('x')
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
import builtins
builtins.left = 1
"""
LOOKING = """
import builtins, os
running = [pid for pid in os.listdir('/proc') if pid.isdigit()]
assert os.listdir('/tmp') == [] and os.listdir('/dev/shm') == [], os.listdir('/tmp')
assert not hasattr(builtins, 'left')
assert len(running) == 3, running  # bubblewrap's own, the one that forks, and this one
"""


def test_nothing_of_one_examination_is_left_for_the_next(pool):
    program = "def f(): return 1"
    for _ in range(2):
        assert verdict(pool, program, "assert f() == 1", LEAVING) == "passed"
        assert verdict(pool, program, "assert f() == 1", LOOKING) == "passed"
        assert pool._examiners.qsize() == 1, "one examiner did all of it"


def test_what_an_examiner_used_for_one_program_does_not_count_for_the_next(pool):
    for _ in range(3):
        assert verdict(pool, "def f(): return 1", "assert f() == 1") == "passed"
        with pool.examiner() as examiner:
            assert examiner.use == Use()
            examiner.use.cpu_seconds = 1e6
            examiner.is_idle = True


def test_a_program_that_ends_its_examination_does_not_touch_the_next(pool):
    floods = "def f(): return {i * (2**61 - 1): 0 for i in range(20000)}"
    for program in (floods, "import os\ndef f(): os._exit(0)", "def f(): raise SystemExit"):
        assert verdict(pool, program, "assert f() == 1") != "passed"
        assert verdict(pool, "def f(): return 1", "assert f() == 1") == "passed"
