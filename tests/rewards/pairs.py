# ruff: noqa: E501, RUF001
"""Pairs of (known answer, given answer, verdict). Verdicts are mathematics and the conventions stated in rewards/math.py, not what some
library says."""

EQUAL, DIFFERENT, UNDECIDED = "equal", "different", "undecided"

ORDINARY = [
    # numbers
    ("16", "16", EQUAL), ("16", "16.0", EQUAL), ("16", "17", DIFFERENT), ("16", "-16", DIFFERENT), ("-3", "−3", EQUAL), ("0", "-0", EQUAL),
    ("1000", "1,000", EQUAL), ("1000", "1{,}000", EQUAL), ("1000000", "1,000,000", EQUAL), ("70,000", "70000", EQUAL), ("1000", "1,0000", DIFFERENT),
    ("0.5", ".5", EQUAL), ("0.5", "\\frac{1}{2}", EQUAL), ("\\frac{1}{2}", "1/2", EQUAL), ("\\frac{1}{2}", "\\frac12", EQUAL),
    ("\\frac{1}{2}", "\\dfrac{2}{4}", EQUAL), ("\\frac{1}{2}", "\\tfrac12", EQUAL), ("\\frac{1}{2}", "\\frac{2}{1}", DIFFERENT),
    ("-\\frac{1}{2}", "\\frac{-1}{2}", EQUAL), ("\\frac{7}{2}", "3\\frac{1}{2}", EQUAL), ("\\frac{7}{2}", "3 1/2", EQUAL),
    ("\\frac{7}{2}", "3.5", EQUAL), ("\\frac{1}{3}", "0.\\overline{3}", EQUAL), ("\\frac{1}{3}", "0.33", DIFFERENT), ("0.33", "\\frac{1}{3}", DIFFERENT),
    ("1200", "1.2\\times 10^3", EQUAL), ("1.2 \\cdot 10^{3}", "1200", EQUAL), ("6e3", "6000", EQUAL), ("3", "\\text{three}", DIFFERENT),
    # money, units, per cent, degrees
    ("18", "\\$18", EQUAL), ("18", "$18$", EQUAL), ("18", "18 dollars", EQUAL), ("18", "\\$18.00", EQUAL), ("\\$32,348", "32348", EQUAL),
    ("5", "5\\text{ cm}", EQUAL), ("5\\text{ cm}", "5", EQUAL), ("5 \\text{ cm}", "5 cm", EQUAL), ("5 \\text{ m}", "500\\text{ cm}", EQUAL),
    ("5\\text{ m}", "5\\text{ cm}", DIFFERENT), ("2 \\text{ hours}", "120 minutes", EQUAL), ("10\\text{ cm}^2", "10\\text{ cm}", DIFFERENT),
    ("10\\text{ cm}^2", "10", EQUAL), ("50 cents", "0.50 dollars", EQUAL), ("3\\text{ apples}", "3\\text{ apples}", EQUAL),
    ("3\\text{ apples}", "3\\text{ pears}", DIFFERENT), ("12\\pi\\text{ inches}", "12\\pi", EQUAL), ("9 \\text{ feet}", "9 foot", EQUAL),
    ("10\\%", "10", EQUAL), ("10\\%", "0.1", EQUAL), ("10", "10\\%", EQUAL), ("0.1", "10\\%", EQUAL), ("10\\%", "10%", EQUAL), ("10\\%", "1", DIFFERENT),
    ("10\\%", "\\frac{1}{10}", EQUAL), ("100", "1\\%", DIFFERENT), ("0.5", "0.5\\%", UNDECIDED), ("25\\%", "25 percent", EQUAL),
    ("60^\\circ", "60", EQUAL), ("60", "60°", EQUAL), ("60^\\circ", "\\frac{\\pi}{3}", EQUAL), ("60^\\circ", "61^\\circ", DIFFERENT),
    ("60^{\\circ}", "60 degrees", EQUAL),
    # roots, constants, expressions
    ("\\sqrt{8}", "2\\sqrt{2}", EQUAL), ("2\\sqrt{2}", "2\\sqrt2", EQUAL), ("2\\sqrt{2}", "2.83", DIFFERENT), ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}", EQUAL),
    ("\\sqrt{5+2\\sqrt{6}}", "\\sqrt{2}+\\sqrt{3}", EQUAL), ("\\pi", "3.14", DIFFERENT), ("\\pi", "3.14159265", DIFFERENT), ("2\\pi", "π*2", EQUAL),
    ("\\frac{\\pi}{2}", "\\pi/2", EQUAL), ("e^2", "e^{2}", EQUAL), ("e^{i\\pi}", "-1", EQUAL), ("\\log_2 8", "3", EQUAL), ("\\ln 4", "2\\ln 2", EQUAL),
    ("\\sqrt[3]{16}", "2\\sqrt[3]{2}", EQUAL), ("2^{10}", "1024", EQUAL), ("5!", "120", EQUAL), ("\\binom{5}{2}", "10", EQUAL), ("i", "\\sqrt{-1}", EQUAL),
    ("3+4i", "4i+3", EQUAL), ("3+4i", "3-4i", DIFFERENT), ("sqrt(2)/2", "\\frac{\\sqrt{2}}{2}", EQUAL), ("|{-3}|", "3", EQUAL),
    ("x^2+2x+1", "(x+1)^2", EQUAL), ("x^2+2x+1", "(x-1)^2", DIFFERENT), ("x(x+1)", "x^2+x", EQUAL), ("2x", "x\\cdot 2", EQUAL), ("2x", "2y", DIFFERENT),
    ("\\frac{x^2-1}{x-1}", "x+1", EQUAL), ("\\sin^2 x+\\cos^2 x", "1", EQUAL), ("a+b", "b+a", EQUAL), ("a-b", "b-a", DIFFERENT), ("|x|", "x", DIFFERENT),
    ("\\sqrt{x^2}", "x", DIFFERENT), ("A", "a+1", DIFFERENT), ("11x+5y", "5y + 11x", EQUAL), ("\\frac{3x}{4}", "0.75x", EQUAL),
    ("\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}", EQUAL), ("x_1+x_2", "x_2+x_1", EQUAL), ("2^{x+1}", "2\\cdot 2^x", EQUAL), ("-1", "i^2", EQUAL),
    # equations
    ("x=5", "5", EQUAL), ("5", "x = 5", EQUAL), ("x=5", "x=6", DIFFERENT), ("x=5", "y=5", DIFFERENT), ("y=2x+3", "2x+3", EQUAL), ("y=2x+3", "y-2x=3", EQUAL),
    ("2x+4y=6", "x+2y=3", EQUAL), ("2x+4y=6", "x+2y=4", DIFFERENT), ("f(x)=x^2", "x^2", EQUAL), ("x=1, x=2", "1, 2", EQUAL),
    ("x^2+y^2=4", "x^2+y^2-4=0", EQUAL),
    # lists, sets, tuples, intervals, matrices
    ("1,2", "2,1", EQUAL), ("1,2", "1, 2, 3", DIFFERENT), ("1,2", "1 and 2", EQUAL), ("1, 2", "\\{1,2\\}", EQUAL), ("\\{1,2\\}", "\\{2,1\\}", EQUAL),
    ("\\{1,2\\}", "\\{1,2,2\\}", EQUAL), ("\\{1,2\\}", "\\{1,3\\}", DIFFERENT), ("\\emptyset", "\\{\\}", EQUAL), ("\\emptyset", "\\{0\\}", DIFFERENT),
    ("(1,2)", "(2,1)", DIFFERENT), ("(1,2)", "\\left(1,2\\right)", EQUAL), ("(1,2)", "(1, \\frac{4}{2})", EQUAL), ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\pi/2)", EQUAL),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "3", DIFFERENT), ("(1,2,3)", "(1,2)", DIFFERENT), ("3\\pm\\sqrt{2}", "3+\\sqrt{2}, 3-\\sqrt{2}", EQUAL),
    ("3\\pm\\sqrt{2}", "3+\\sqrt{2}", DIFFERENT), ("[1,3)", "[1,3)", EQUAL), ("[1,3)", "[1,3]", DIFFERENT), ("[1,3)", "1\\le x<3", EQUAL),
    ("(1,3)", "1<x<3", EQUAL), ("1<x<3", "(1,3)", EQUAL), ("(-\\infty,3]", "x\\le 3", EQUAL), ("(-\\infty,3]", "x<3", DIFFERENT), ("x>2", "(2,\\infty)", EQUAL),
    ("x \\in [0,1]", "[0,1]", EQUAL), ("(-\\infty,0)\\cup(1,\\infty)", "(1,\\infty)\\cup(-\\infty,0)", EQUAL),
    ("(-\\infty,0)\\cup(1,\\infty)", "(-\\infty,0)\\cup[1,\\infty)", DIFFERENT), ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\2\\end{bmatrix}", EQUAL),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&\\frac{8}{2}\\end{pmatrix}", EQUAL),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", DIFFERENT),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", DIFFERENT),
    # words and choices
    ("\\text{Evelyn}", "Evelyn", EQUAL), ("\\text{Evelyn}", "evelyn", EQUAL), ("\\text{Evelyn}", "Briana", DIFFERENT), ("\\text{even}", "\\text{odd}", DIFFERENT),
    ("yes", "Yes.", EQUAL), ("Monday", "\\textbf{Monday}", EQUAL), ("\\text{(C)}", "C", EQUAL), ("B", "(B)", EQUAL), ("B", "B. 42", EQUAL),
    ("B", "(C)", DIFFERENT), ("B", "b", EQUAL), ("B", "\\text{B}", EQUAL), ("2516_8", "2516_{8}", EQUAL), ("2516_8", "2516_{\\text{8}}", EQUAL),
]  # fmt: skip

ADVERSARIAL = [
    # near misses that rounding pays
    ("\\frac{1}{3}", "0.333333", DIFFERENT), ("\\frac{1}{3}", "0.3333333333333333333333", DIFFERENT), ("\\sqrt{2}", "1.41421356237309504880", DIFFERENT),
    ("1000000", "1000001", DIFFERENT), ("10^{20}", "10^{20}+1", DIFFERENT), ("0.1", "0.10000000001", DIFFERENT), ("e", "2.718281828459045", DIFFERENT),
    ("262537412640768744", "e^{\\pi\\sqrt{163}}", DIFFERENT), ("\\pi", "\\frac{355}{113}", DIFFERENT), ("\\pi", "3.1415926535897932384626433832795028841971", DIFFERENT),
    # several answers at once, and answers that hold the right one
    ("3", "3, 4", DIFFERENT), ("3", "3 or 4", DIFFERENT), ("3", "\\{3,4\\}", DIFFERENT), ("3", "(3,4)", DIFFERENT), ("1,2", "1,2,3,4,5", DIFFERENT),
    ("3", "1,2,3,4,5,6,7,8,9", DIFFERENT), ("3", "3 \\text{ or } 4", DIFFERENT), ("B", "A B C D", DIFFERENT), ("B", "A, B", DIFFERENT), ("5", "x", DIFFERENT),
    ("5", "5x", DIFFERENT), ("5x", "5", DIFFERENT), ("6", "1 2 3", UNDECIDED), ("6", "2 3", UNDECIDED), ("16", "#16", UNDECIDED), ("2x", "1/2x", UNDECIDED),
    # what is no number
    ("0", "nan", DIFFERENT), ("5", "\\infty", DIFFERENT), ("\\infty", "-\\infty", DIFFERENT), ("0", "\\frac{0}{0}", DIFFERENT), ("1", "\\frac{1}{0}", DIFFERENT),
    ("5", "", DIFFERENT), ("5", "any number", DIFFERENT), ("5", "the answer", DIFFERENT), ("2516_8", "2516", DIFFERENT), ("2516_8", "2516_{10}", DIFFERENT),
    ("2516_8", "1358", UNDECIDED), ("1358", "2516_8", UNDECIDED),
    # hostile: towers, factorials, brackets, size, bytes
    ("5", "9^{9^9}", UNDECIDED), ("5", "9^{9^{9^{9}}}", UNDECIDED), ("5", "100000000!", UNDECIDED), ("5", "((9!)!)!", UNDECIDED), ("5", "\\binom{10^9}{10^8}", UNDECIDED),
    ("5", "(" * 5000, UNDECIDED), ("5", "{" * 100_000, UNDECIDED), ("5", "1" * 100_000, UNDECIDED), ("5", "\\frac{" * 300, UNDECIDED),
    ("5", "\\sqrt{" * 100 + "5" + "}" * 100, DIFFERENT), ("5", "1e999999999", DIFFERENT), ("5", "\ud800\udfff", UNDECIDED), ("5", "\x00", UNDECIDED),
    ("5", "__import__('os').system('id')", DIFFERENT), ("5", "\\input{/etc/passwd}", DIFFERENT), ("5", "x" * 1500, DIFFERENT), ("5", "-" * 999 + "5", UNDECIDED),
    ("5", "5" + "+0" * 400, EQUAL), ("5", "(x+y+z)^{900}", DIFFERENT), ("5", "\\sum_{n=1}^{100000000} n", DIFFERENT), ("5", "\\int_0^1 x^{x^x} dx", UNDECIDED),
    ("1", "\\prod_{k=1}^{99999999} k", DIFFERENT),
]  # fmt: skip
