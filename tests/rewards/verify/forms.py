# ruff: noqa: RUF001
"""The forms in which answers are written. Each has rules that write one answer in several ways, and
rules that write others; `writings.layouts` multiplies them."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial

from tests.rewards.verify.writings import layouts, number_writings


@dataclass(frozen=True, kw_only=True)
class Form:
    """One answer of a form."""

    gold: str
    equal: list[str]
    """Other writings of it."""
    different: list[str]
    """Writings of other answers."""


def integers() -> Form:
    return Form(
        gold="-1234",
        equal=number_writings(Fraction(-1234)),
        different=[w for n in (1234, -1235, -12340) for w in number_writings(Fraction(n))],
    )


def decimals() -> Form:
    return Form(
        gold="2.375",
        equal=number_writings(Fraction(19, 8)),
        different=[w for n in (2.376, 23.75, -2.375) for w in number_writings(Fraction(str(n)))],
    )


def fractions() -> Form:
    return Form(
        gold="\\frac{5}{12}",
        equal=[*number_writings(Fraction(5, 12)), "\\frac5{12}", "5/12", "\\cfrac{5}{12}"],
        different=[w for n in (Fraction(12, 5), Fraction(5, 11)) for w in number_writings(n)],
    )


def thousands() -> Form:
    return Form(
        gold="1234567",
        equal=[
            "1,234,567",
            "1{,}234{,}567",
            "1,\\!234,\\!567",
            "1\\,234\\,567",
            "1,\\! 234,\\! 567",
        ],
        different=["1,234,568", "1{,}234{,}576", "1,234.567", "1,\\!234", "12,34,567", "1 234 567"],
    )


def mixed_numbers() -> Form:
    values = (Fraction(31, 2), Fraction(5, 2), Fraction(3, 2), Fraction(-7, 2))
    return Form(
        gold="3\\frac{1}{2}",
        equal=["3 1/2", "3\\frac12", "3 \\frac{2}{4}", "\\frac{7}{2}", "3.5", "7/2", "3½", "3 3/6"],
        different=["31/2", "3 1/3", *(w for value in values for w in number_writings(value))],
    )


def repeating_decimals() -> Form:
    return Form(
        gold="0.1\\overline{6}",
        equal=[
            "0.1\\bar{6}",
            "0.1\\bar6",
            "0.1(6)",
            ".1\\overline{66}",
            "0.16\\overline{6}",
            "0.1\\dot{6}",
            "\\frac16",
            "0.1\\overline 6",
        ],
        different=[
            "0.\\overline{16}",
            "0.16",
            "0.1666666",
            "0.1\\overline{7}",
            "0.(16)",
            "0.1(06)",
        ],
    )


def scientific() -> Form:
    return Form(
        gold="1.2\\times 10^{-3}",
        equal=[
            "1.2\\cdot 10^{-3}",
            "1.2e-3",
            "1.2E-3",
            "0.0012",
            "12\\times10^{-4}",
            ".12e-2",
            "\\frac{3}{2500}",
            "1.2×10^{-3}",
        ],
        different=["1.2\\times10^{3}", "1.2\\times10^{-2}", "1.2e-4", "0.012", "1.2-10^3", "12e-3"],
    )


def per_cent() -> Form:
    return Form(
        gold="12.5\\%",
        equal=["12.5%", "12.5\\text{ percent}", "12.5 percent", "\\frac{25}{2}\\%", "0.125", "1/8"],
        different=[
            "1.25\\%",
            "125\\%",
            "12.6\\%",
            "\\$12.5",
            "1.25",
            "12.5^\\circ",
            "12.5\\text{ cm}",
        ],
    )


def dollars() -> Form:
    return Form(
        gold="\\$5.50",
        equal=[
            "$5.50",
            "5.50 dollars",
            "5.5\\text{ dollars}",
            "550 cents",
            "550\\text{ cents}",
            "5\\frac12\\text{ dollars}",
            "\\$\\frac{11}{2}",
            "5.5",
            "550¢",
        ],
        different=["5.50 cents", "£5.50", "€5.50", "5.5\\%", "55 cents", "\\$5.05", "\\$55", "550"],
    )


def other_currencies() -> Form:
    return Form(
        gold="£20",
        equal=["£20.00", "\\pounds 20", "20", "\\pounds20", "£ 20", "£\\frac{40}{2}", "2000 pence"],
        different=["\\$20", "€20", "20 dollars", "20 cents", "£2", "£200", "20\\%", "£21"],
    )


def degrees() -> Form:
    return Form(
        gold="60^\\circ",
        equal=[
            "60^{\\circ}",
            "60°",
            "60 degrees",
            "60\\text{ degrees}",
            "60\\degree",
            "60",
            "\\frac{\\pi}{3}",
            "\\frac{\\pi}{3}\\text{ radians}",
            "\\pi/3",
        ],
        different=[
            "61^\\circ",
            "6^\\circ",
            "60\\text{ radians}",
            "\\frac{\\pi}{6}",
            "60\\%",
            "\\frac{\\pi}{3}^\\circ",
            "-60^\\circ",
        ],
    )


def trigonometry() -> Form:
    return Form(
        gold="\\sin 30^\\circ",
        equal=[
            "\\sin(30^\\circ)",
            "\\sin{30^\\circ}",
            "\\frac12",
            "0.5",
            "\\cos 60^\\circ",
            "\\sin\\frac{\\pi}{6}",
            "\\sin 30°",
            "\\sin 150^\\circ",
        ],
        different=[
            "\\sin 30",
            "\\cos 30^\\circ",
            "-\\frac12",
            "\\sin 60^\\circ",
            "30^\\circ",
            "\\frac{\\sqrt3}{2}",
        ],
    )


def bases() -> Form:
    return Form(
        gold="204_5",
        equal=[
            "204_{5}",
            "(204)_5",
            "204_{\\text{five}}",
            "204_{five}",
            "204\\text{ base }5",
            "204_{\\text{base }5}",
            "0204_5",
            "204 \\text{ (base 5)}",
            "204_{(5)}",
        ],
        different=[
            "204_6",
            "240_5",
            "204",
            "54",
            "204_{\\text{six}}",
            "2040_5",
            "204_{10}",
            "24_5",
        ],
    )


def factorials() -> Form:
    value = factorial(5)
    return Form(
        gold="5!",
        equal=[
            str(value),
            "5\\cdot 4!",
            "1\\cdot2\\cdot3\\cdot4\\cdot5",
            "\\frac{6!}{6}",
            "20\\cdot 3!",
            "(5)!",
        ],
        different=[str(value + 1), "6!", "4!", "5", "5!+1", "-5!", "\\frac{5!}{2}", "2\\cdot5!"],
    )


def binomials() -> Form:
    return Form(
        gold="\\binom{10}{3}",
        equal=[
            "\\dbinom{10}{3}",
            "\\tbinom{10}{3}",
            "{10 \\choose 3}",
            "\\binom{10}{7}",
            str(comb(10, 3)),
            "\\frac{10!}{3!7!}",
            "{10\\choose7}",
            "\\frac{10\\cdot9\\cdot8}{6}",
        ],
        different=[
            "\\binom{10}{4}",
            "\\binom{9}{3}",
            "{3 \\choose 10}",
            "\\frac{10}{3}",
            "(10,3)",
            "720",
            "\\binom{11}{3}",
        ],
    )


def powers() -> Form:
    return Form(
        gold="2^{10}",
        equal=[
            "1024",
            "4^5",
            "2^{5}\\cdot2^5",
            "32^2",
            "1,024",
            "2\\cdot2^9",
            "\\frac{2^{12}}{4}",
            "2^10",
        ],
        different=["2^9", "10^2", "20", "2^{11}", "1025", "-2^{10}"],
    )


def roots() -> Form:
    return Form(
        gold="2\\sqrt{2}",
        equal=[
            "\\sqrt{8}",
            "2\\sqrt2",
            "\\frac{4}{\\sqrt{2}}",
            "8^{1/2}",
            "2\\cdot\\sqrt{2}",
            "\\sqrt2+\\sqrt2",
            "2√2",
        ],
        different=[
            "\\sqrt{2}",
            "2.828",
            "2\\sqrt{3}",
            "\\sqrt[3]{8}",
            "22",
            "4\\sqrt2",
            "-2\\sqrt2",
        ],
    )


def logarithms() -> Form:
    return Form(
        gold="2\\ln 3",
        equal=["\\ln 9", "\\ln{9}", "\\ln(9)", "2\\log_e 3", "\\ln3+\\ln3", "-\\ln\\frac19"],
        different=["\\ln 6", "3\\ln 2", "2.197", "\\ln 3", "\\log_{10} 9", "2\\ln 4", "9"],
    )


def multiples_of_pi() -> Form:
    return Form(
        gold="\\frac{3\\pi}{4}",
        equal=[
            "\\frac{3}{4}\\pi",
            "3\\pi/4",
            "0.75\\pi",
            "\\frac34\\pi",
            "\\pi-\\frac{\\pi}{4}",
            "\\frac{6π}{8}",
        ],
        different=[
            "2.356",
            "\\frac{3}{4}",
            "\\frac{4\\pi}{3}",
            "3\\pi",
            "\\frac{3\\pi^2}{4}",
            "-\\frac{3\\pi}{4}",
        ],
    )


def complex_numbers() -> Form:
    return Form(
        gold="3-4i",
        equal=["-4i+3", "3-4\\cdot i", "3+(-4)i", "(2-i)^2", "\\frac{6-8i}{2}", "i(-4-3i)"],
        different=["3+4i", "-3-4i", "4-3i", "3-4", "5", "(2+i)^2", "3-4j"],
    )


def polynomials() -> Form:
    return Form(
        gold="x^2-5x+6",
        equal=["6-5x+x^2", "(x-2)(x-3)", "x(x-5)+6", "-5x+x^2+6", "x^{2}-5x+6", "(x-2)\\cdot(x-3)"],
        different=["x^2+5x+6", "x^2-5x-6", "(x+2)(x+3)", "y^2-5y+6", "x^3-5x+6", "x^2-6x+5"],
    )


def rational_functions() -> Form:
    return Form(
        gold="\\frac{1}{x+1}",
        equal=["\\frac{1}{1+x}", "(x+1)^{-1}", "1/(x+1)", "\\frac{2}{2x+2}", "\\frac{x-1}{x^2-1}"],
        different=["\\frac{1}{x-1}", "\\frac{1}{x}+1", "x+1", "\\frac{1}{y+1}", "\\frac{2}{x+1}"],
    )


def absolute_values() -> Form:
    return Form(
        gold="|x-3|",
        equal=["|3-x|", "\\left|x-3\\right|", "\\lvert x-3\\rvert", "|x-3|", "\\sqrt{(x-3)^2}"],
        different=["x-3", "|x+3|", "|x|-3", "3-x", "|y-3|", "|x-3|+1"],
    )


def lists() -> Form:
    return Form(
        gold="120, 360",
        equal=[
            "360, 120",
            "120 and 360",
            "120\\text{ and }360",
            "120; 360",
            "120,360",
            "\\{120, 360\\}",
            "120 \\text{ or } 360",
            "x=120, x=360",
            "120.0, \\frac{720}{2}",
        ],
        different=[
            "120360",
            "120, 361",
            "120",
            "(120, 360)",
            "120, 360, 1",
            "12, 360",
            "[120,360]",
        ],
    )


def sets() -> Form:
    return Form(
        gold="\\{-1,0,1\\}",
        equal=[
            "\\{0,1,-1\\}",
            "\\{0,\\pm1\\}",
            "\\{0, \\pm 1\\}",
            "\\lbrace -1,0,1\\rbrace",
            "\\{1,1,0,-1\\}",
            "\\{-1\\}\\cup\\{0,1\\}",
            "-1,0,1",
        ],
        different=[
            "\\{0,1\\}",
            "\\{-1,0,2\\}",
            "(-1,0,1)",
            "\\{\\pm1\\}",
            "\\{-1,0,1,2\\}",
            "[-1,1]",
        ],
    )


def tuples() -> Form:
    return Form(
        gold="(1,-2,3)",
        equal=[
            "(1, -2, 3)",
            "\\left(1,-2,3\\right)",
            "(1,-2,\\frac{6}{2})",
            "\\langle 1,-2,3\\rangle",
            "x=1, y=-2, z=3",
            "(x,y,z)=(1,-2,3)",
            "x=1,y=-2\\text{ and }z=3",
        ],
        different=["(1,2,3)", "(3,-2,1)", "(1,-2)", "(1,-2,3,0)", "\\{1,-2,3\\}", "x=3, y=-2, z=1"],
    )


def assignments() -> Form:
    return Form(
        gold="x=1, y=2",
        equal=[
            "y=2, x=1",
            "x=1\\text{ and }y=2",
            "(x,y)=(1,2)",
            "(1,2)",
            "x=1; y=2",
            "x = \\frac22, y=2.0",
        ],
        different=["x=2, y=1", "x=1, y=3", "(2,1)", "x=1", "a=1, b=2", "(x,y)=(2,1)"],
    )


def intervals() -> Form:
    return Form(
        gold="[1,3)",
        equal=[
            "\\left[1,3\\right)",
            "1\\le x<3",
            "1\\leq x < 3",
            "x\\in[1,3)",
            "3>x\\ge1",
            "[1, \\frac{6}{2})",
            "x\\ge1\\text{ and }x<3",
            "\\{x : 1\\le x<3\\}",
            "\\{x \\mid 1\\le x<3\\}",
        ],
        different=["[1,3]", "(1,3)", "(1,3]", "[1,4)", "1<x<3", "1\\le x\\le3", "[0,3)", "x<3"],
    )


def unions() -> Form:
    return Form(
        gold="(-\\infty,-1)\\cup(1,\\infty)",
        equal=[
            "(1,\\infty)\\cup(-\\infty,-1)",
            "|x|>1",
            "x<-1 \\text{ or } x>1",
            "x<-1 or x>1",
            "x>1\\lor x<-1",
            "x\\in(-\\infty,-1)\\cup(1,\\infty)",
            "x^2>1",
            "\\mathbb{R}\\setminus[-1,1]",
        ],
        different=[
            "(-1,1)",
            "|x|<1",
            "(-\\infty,-1]\\cup[1,\\infty)",
            "|x|\\ge1",
            "x>1",
            "|x|>2",
            "x<-1 or x>2",
            "(-\\infty,\\infty)",
        ],
    )


def all_reals() -> Form:
    return Form(
        gold="\\mathbb{R}",
        equal=[
            "(-\\infty,\\infty)",
            "\\text{all real numbers}",
            "all real numbers",
            "x\\in\\mathbb{R}",
            "ℝ",
            "-\\infty<x<\\infty",
            "\\text{All reals}",
        ],
        different=[
            "(0,\\infty)",
            "\\emptyset",
            "\\mathbb{R}\\setminus\\{0\\}",
            "x\\ne0",
            "\\{0\\}",
            "(-\\infty,0)",
        ],
    )


def exclusions() -> Form:
    return Form(
        gold="\\mathbb{R}\\setminus\\{2\\}",
        equal=[
            "x\\ne 2",
            "x\\neq2",
            "(-\\infty,2)\\cup(2,\\infty)",
            "x<2\\text{ or }x>2",
            "ℝ∖\\{2\\}",
            "\\mathbb{R}\\backslash\\{2\\}",
        ],
        different=[
            "x\\ne 3",
            "\\mathbb{R}",
            "\\{2\\}",
            "\\mathbb{R}\\setminus\\{-2\\}",
            "(-\\infty,2)",
            "x=2",
            "(-\\infty,2]\\cup[2,\\infty)",
        ],
    )


def empty_sets() -> Form:
    return Form(
        gold="\\emptyset",
        equal=["\\varnothing", "\\{\\}", "\\{ \\}", "∅", "\\lbrace\\rbrace"],
        different=["\\{0\\}", "0", "\\mathbb{R}", "\\{\\emptyset\\}", "(0,1)", "\\text{one}", "1"],
    )


def infinities() -> Form:
    return Form(
        gold="\\infty",
        equal=["+\\infty", "∞", "infinity", "\\text{infinity}", "oo"],
        different=["-\\infty", "0", "10^{99}", "\\emptyset", "x", "1"],
    )


def inequalities() -> Form:
    return Form(
        gold="x\\ge 2",
        equal=[
            "2\\le x",
            "x\\geq2",
            "[2,\\infty)",
            "x\\in[2,\\infty)",
            "2x\\ge4",
            "x-2\\ge0",
            "-x\\le-2",
        ],
        different=["x>2", "x\\le2", "(2,\\infty)", "x\\ge3", "y\\ge2", "x=2", "2x\\ge2"],
    )


def inequalities_in_two_variables() -> Form:
    return Form(
        gold="a>b",
        equal=["b<a", "a-b>0", "b-a<0", "2a>2b", "0<a-b", "-a<-b"],
        different=["a<b", "a\\ge b", "b>a", "a=b", "a>c", "2a>b"],
    )


def equations() -> Form:
    return Form(
        gold="y=2x+3",
        equal=["2x+3=y", "y-2x=3", "y-2x-3=0", "2y=4x+6", "2x+3", "y = 3+2x", "y=\\frac{4x+6}{2}"],
        different=["y=2x-3", "y=3x+2", "x=2y+3", "y=2x", "3x+2", "2y=2x+3"],
    )


def equations_that_end_in_the_answer() -> Form:
    return Form(
        gold="204",
        equal=[
            "m+n=204",
            "m + n = 200 + 4 = 204",
            "200+4=204",
            "x=204",
            "204=x",
            "f(2)=204",
            "\\angle ABC=204",
            "x=\\frac{408}{2}=204",
        ],
        different=["m+n=205", "200+4=205", "200+5=204", "x=203", "2x=204", "x^2=204", "x=204=205"],
    )


def approximations() -> Form:
    return Form(
        gold="3.14",
        equal=[
            "\\pi\\approx 3.14",
            "x\\approx3.14",
            "\\approx 3.14",
            "≈3.14",
            "\\frac{22}{7}\\approx3.14",
        ],
        different=[
            "\\pi\\approx 3.15",
            "x\\approx3",
            "2\\approx3.14",
            "\\approx 3.1",
            "3.14\\approx4",
        ],
    )


def plus_minus() -> Form:
    return Form(
        gold="3\\pm\\sqrt{2}",
        equal=[
            "3+\\sqrt2, 3-\\sqrt2",
            "3-\\sqrt{2},3+\\sqrt{2}",
            "x=3\\pm\\sqrt2",
            "3±\\sqrt{2}",
            "\\{3\\pm\\sqrt2\\}",
            "3+\\sqrt{2}\\text{ and }3-\\sqrt2",
        ],
        different=[
            "3+\\sqrt2",
            "2\\pm\\sqrt3",
            "-3\\pm\\sqrt2",
            "\\pm(3+\\sqrt2)",
            "3\\pm2",
            "3-\\sqrt2",
        ],
    )


def matrices() -> Form:
    return Form(
        gold="\\begin{pmatrix} 1 & -2 \\\\ 3 & 4 \\end{pmatrix}",
        equal=[
            "\\begin{pmatrix}1&-2\\\\3&4\\end{pmatrix}",
            "\\begin{bmatrix}1&-2\\\\3&4\\end{bmatrix}",
            "\\begin{pmatrix}\n1 & -2 \\\\\n3 & 4\n\\end{pmatrix}",
            "\\begin{pmatrix}1&-2\\\\[2pt] 3&4\\\\\\end{pmatrix}",
            "\\left[\\begin{array}{cc}1&-2\\\\ 3&4\\end{array}\\right]",
            "\\left(\\begin{matrix}1&-2\\\\3&4\\end{matrix}\\right)",
            "\\begin{pmatrix}1&-2\\\\3&\\frac{8}{2}\\end{pmatrix}",
        ],
        different=[
            "\\begin{pmatrix}1&3\\\\-2&4\\end{pmatrix}",
            "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
            "\\begin{pmatrix}1&-2\\end{pmatrix}",
            "\\begin{pmatrix}1\\\\-2\\\\3\\\\4\\end{pmatrix}",
            "\\begin{pmatrix}1&-2&3&4\\end{pmatrix}",
            "\\begin{pmatrix}1-2\\\\34\\end{pmatrix}",
        ],
    )


def vectors() -> Form:
    return Form(
        gold="\\begin{pmatrix} 5 \\\\ -3 \\end{pmatrix}",
        equal=[
            "\\begin{pmatrix}5\\\\-3\\end{pmatrix}",
            "\\begin{bmatrix} 5 \\\\ -3 \\end{bmatrix}",
            "\\begin{pmatrix} 5 \\\\[4pt] -3 \\end{pmatrix}",
            "\\begin{pmatrix}5\\\\ \\frac{-6}{2}\\end{pmatrix}",
            "(5,-3)",
            "\\langle 5,-3\\rangle",
            "\\begin{pmatrix}5&-3\\end{pmatrix}^T",
        ],
        different=[
            "\\begin{pmatrix} 2 \\end{pmatrix}",
            "\\begin{pmatrix}5-3\\end{pmatrix}",
            "(-3,5)",
            "\\begin{pmatrix} 5 \\\\ 3 \\end{pmatrix}",
            "\\begin{pmatrix}-3\\\\5\\end{pmatrix}",
            "53",
        ],
    )


def modular() -> Form:
    return Form(
        gold="3\\pmod{7}",
        equal=[
            "3\\pmod 7",
            "10\\pmod{7}",
            "x\\equiv3\\pmod{7}",
            "-4\\pmod7",
            "3 (mod 7)",
            "3\\mod 7",
            "3",
            "x\\equiv 10\\pmod 7",
        ],
        different=["4\\pmod{7}", "3\\pmod{8}", "x\\equiv4\\pmod7", "4", "7\\pmod3", "-3\\pmod7"],
    )


def words() -> Form:
    return Form(
        gold="\\text{Evelyn}",
        equal=[
            "Evelyn",
            "\\textbf{Evelyn}",
            "\\mbox{Evelyn}",
            "\\mathrm{Evelyn}",
            "evelyn",
            "Evelyn.",
            "\\text{The answer is Evelyn}",
        ],
        different=["Briana", "\\text{Eve}", "\\text{not Evelyn}", "Evelyn and Briana", "5", "e"],
    )


def choices() -> Form:
    return Form(
        gold="\\text{(C)}",
        equal=[
            "C",
            "(C)",
            "\\textbf{(C)}",
            "\\textbf{(C) } 42",
            "C. 42",
            "c",
            "\\text{The answer is C}",
            "C) 42",
            "\\mathrm{(C)}",
        ],
        different=[
            "D",
            "(D)",
            "\\textbf{(D) } 42",
            "A. 42",
            "\\text{The answer is B}",
            "42",
            "C, D",
        ],
    )


def times() -> Form:
    return Form(
        gold="2\\!:\\!30\\text{ p.m.}",
        equal=[
            "2:30 p.m.",
            "2:30 PM",
            "2:30\\text{ pm}",
            "02:30 pm",
            "14:30",
            "2:30 \\text{ P.M.}",
            "2:30",
        ],
        different=["2:30 a.m.", "2:31 p.m.", "3:30 pm", "02:30 am", "14:31", "12:30 pm", "230"],
    )


def ratios() -> Form:
    return Form(
        gold="2:3",
        equal=["4:6", "2 : 3", "6:9", "1:1.5", "\\frac23:1", "10:15"],
        different=["3:2", "2:4", "2:3:1", "23", "(2,3)", "1:3"],
    )


def lengths() -> Form:
    return Form(
        gold="5\\text{ m}",
        equal=[
            "5\\text{ meters}",
            "500\\text{ cm}",
            "5 m",
            "5 metres",
            "5000 mm",
            "0.005\\text{ km}",
            "5",
        ],
        different=[
            "5\\text{ cm}",
            "5\\text{ s}",
            "5\\text{ m}^2",
            "50\\text{ cm}",
            "6 m",
            "5\\text{ km}",
            "500",
        ],
    )


def units_with_powers() -> Form:
    return Form(
        gold="10\\text{ cm}^2",
        equal=[
            "10\\text{ cm}^{2}",
            "10 cm^2",
            "10\\text{ square centimeters}",
            "10 square cm",
            "10cm²",
            "0.001\\text{ m}^2",
            "1000\\text{ mm}^2",
            "10",
        ],
        different=[
            "10\\text{ cm}",
            "10\\text{ cm}^3",
            "10\\text{ m}^2",
            "10 cubic cm",
            "1\\text{ cm}^2",
            "100",
        ],
    )


def speeds() -> Form:
    return Form(
        gold="5\\text{ m/s}",
        equal=[
            "18\\text{ km/h}",
            "5\\text{ m}/\\text{s}",
            "5 m/s",
            "5\\text{ meters per second}",
            "300\\text{ m/min}",
            "5",
        ],
        different=[
            "5\\text{ km/h}",
            "5\\text{ m}",
            "5\\text{ s}",
            "5\\text{ m/s}^2",
            "18\\text{ m/s}",
            "50",
        ],
    )


FORMS: dict[str, Callable[[], Form]] = {
    form.__name__: form
    for form in (
        integers,
        decimals,
        fractions,
        thousands,
        mixed_numbers,
        repeating_decimals,
        scientific,
        per_cent,
        dollars,
        other_currencies,
        degrees,
        trigonometry,
        bases,
        factorials,
        binomials,
        powers,
        roots,
        logarithms,
        multiples_of_pi,
        complex_numbers,
        polynomials,
        rational_functions,
        absolute_values,
        lists,
        sets,
        tuples,
        assignments,
        intervals,
        unions,
        all_reals,
        exclusions,
        empty_sets,
        infinities,
        inequalities,
        inequalities_in_two_variables,
        equations,
        equations_that_end_in_the_answer,
        approximations,
        plus_minus,
        matrices,
        vectors,
        modular,
        words,
        choices,
        times,
        ratios,
        lengths,
        units_with_powers,
        speeds,
    )
}


def equal_renderings(form: Form) -> list[str]:
    return list(dict.fromkeys(r for text in [form.gold, *form.equal] for r in layouts(text)))


def different_renderings(form: Form) -> list[str]:
    return list(dict.fromkeys(r for text in form.different for r in layouts(text)[:5]))
