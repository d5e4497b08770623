"""Questions about a picture of one digit, and their answers, in two languages."""

# A language: the digits' names, and (question, answer) with {d} the digit shown
# and {n} the one after it (nine is followed by zero).
ENGLISH = (
    ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    (
        ("Which digit is this?", "This is {d}."),
        ("What number does the picture show?", "It shows {d}."),
        ("Please read the handwritten digit.", "The digit is {d}."),
        ("Which digit comes after this one?", "After it comes {n}."),
        ("Add one to the digit in the picture.", "One more is {n}."),
    ),
)
CHINESE = (
    ("零", "一", "二", "三", "四", "五", "六", "七", "八", "九"),
    (
        ("这是哪个数字？", "这是{d}。"),
        ("图片里写的是什么数字？", "图片里写的是{d}。"),
        ("请读出这个手写数字。", "这个数字是{d}。"),
        ("下一个数字是什么？", "下一个数字是{n}。"),
        ("图片里的数字加一等于几？", "等于{n}。"),
    ),
)


def question_and_answer(digit, choice):
    """The `choice`-th of all questions (any number from 0), about `digit`."""
    names, pairs = (ENGLISH, CHINESE)[choice % 2]
    question, answer = pairs[choice // 2 % len(pairs)]
    return question, answer.format(d=names[digit], n=names[(digit + 1) % 10])


def count():
    """How many different questions there are."""
    return 2 * len(ENGLISH[1])
