#!/usr/bin/env python3
"""Writes the digits as pictures and conversations: `make_data.py FOLDER`.

FOLDER gets pictures/*.png, train.json and held-out.json in MPP-LLaVA's format: the
training pictures with CHOICES questions each, in a fixed random order; the
held-out pictures with one question each, of all kinds alike.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import questions
from pictures import split

CHOICES = 4  # questions about a training picture


def save_pictures(folder, part):
    """Writes the pictures of a part; returns their names and digits."""
    pictures, digits = split(part)
    names = [f"pictures/{part}-{i:04}.png" for i in range(len(pictures))]
    for name, picture in zip(names, pictures):
        Image.fromarray(picture).save(folder / name)
    return names, digits


def record(name, digit, choice):
    """One conversation about one picture."""
    question, answer = questions.question_and_answer(digit, choice)
    return {
        "image": name,
        "instruction": f"<Img><ImageHere></Img> {question}",
        "output": answer,
    }


def main():
    folder = Path(sys.argv[1])
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(1)
    names, digits = save_pictures(folder, "train")
    train = [
        record(name, digit, choice)
        for name, digit in zip(names, digits)
        for choice in order.choice(questions.count(), CHOICES, replace=False)
    ]
    order.shuffle(train)
    names, digits = save_pictures(folder, "held-out")
    held_out = [record(name, digit, i) for i, (name, digit) in enumerate(zip(names, digits))]
    for part, records in (("train", train), ("held-out", held_out)):
        text = json.dumps(records, ensure_ascii=False, indent=1)
        (folder / f"{part}.json").write_text(text + "\n")
        print(f"{part}: {len(records)} conversations")


if __name__ == "__main__":
    main()
