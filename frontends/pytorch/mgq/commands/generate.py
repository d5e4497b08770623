"""mgq-generate: answers questions about pictures with an exported model and what was trained.

Decoding is greedy: the most likely token each time.
"""

import argparse
import json
from pathlib import Path

from mgq.errors import UserError, run


CHUNK = 16  # batches whose pictures are in memory at a time


def count(text):
    """A positive number."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def parse_arguments(argv):
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-generate", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="MODEL.onnx", help="an export of mgq-export minigpt4qwen, with weights")
    trained = parser.add_mutually_exclusive_group()
    trained.add_argument("--checkpoint", metavar="DIR", help="trained weights: a checkpoint of the executable")
    trained.add_argument("--adapter", metavar="FOLDER", help="trained weights: a folder of mgq-adapter or PEFT")
    add("--tokenizer", required=True, metavar="DIR")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--question", metavar="TEXT",
                       help="its marks <image> say where the pictures are; without: before the text")
    asked.add_argument("--questions", metavar="FILE",
                       help='JSON list or lines of {"question": TEXT, "image": FILE} or of records as mgq-prepare '
                            "takes them, whose last answer is left out")
    add("--image", nargs="+", action="extend", default=[], metavar="FILE", help="pictures of --question")
    add("--images-root", metavar="DIR", help="folder of the pictures of --questions; default: that of the file")
    add("--system", metavar="TEXT", help="system message; default: Qwen's")
    add("--max-new-tokens", type=count, default=256, metavar="N", help="of an answer; default 256")
    add("--batch", type=count, default=64, metavar="N", help="questions at a time; default 64")
    add("--dtype", choices=("f32", "bf16"), default="f32", help="of weights and arithmetic; default f32")
    add("--json", action="store_true", help="one JSON object for each question: question, answer")
    args = parser.parse_args(argv)
    if args.questions and args.image:
        parser.error("--image is for --question; the pictures of --questions are in its file")
    if args.question is not None and args.images_root:
        parser.error("--images-root is for --questions")
    return args


def conversations_of(args):
    """(where, Conversation) of each question."""
    from mgq.data import conversations, records
    from mgq.generation import conversation_of

    if args.question is not None:
        return [("--question", conversation_of(args.question, args.image))]
    index = records.index(args.questions)
    found = []
    for number in range(len(index)):
        where = f"{args.questions}: record {number + 1}"
        record = index.read(number)
        try:
            if isinstance(record, dict) and "question" in record:
                text = conversations.expect_text(record["question"], "'question'")
                found.append((where, conversation_of(text, *conversations.media(record))))
            else:
                found.append((where, conversations.parse(record)))
        except conversations.RecordError as error:
            raise UserError(f"{where}: {error}") from error
    return found


def text_of(conversation):
    """The last question as text, images as <image>."""
    turns = [turn for turn in conversation.turns if turn.role == "user"]
    return "".join(part if isinstance(part, str) else "<image>" for part in turns[-1].parts)


def generate(args):
    """Runs mgq-generate."""
    import torch

    from mgq import generation
    from mgq.data.chat import SYSTEM
    from mgq.data.conversations import RecordError

    asked = conversations_of(args)
    root = args.images_root or (Path(args.questions).parent if args.questions else ".")
    system = SYSTEM if args.system is None else args.system
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    assistant = generation.load(args.model, args.tokenizer, args.checkpoint, args.adapter, system, root, dtype)
    chunk = CHUNK * args.batch
    for begin in range(0, len(asked), chunk):
        questions = []
        for where, conversation in asked[begin : begin + chunk]:
            try:
                questions.append(assistant.ask(conversation))
            except RecordError as error:
                raise UserError(f"{where}: {error}") from error
        texts = generation.answer(assistant, questions, args.max_new_tokens, args.batch)
        for (_, conversation), text in zip(asked[begin:], texts):
            print_answer(args, text_of(conversation), text)


def print_answer(args, question, answer):
    """One answer, in the form asked for."""
    if args.json:
        print(json.dumps({"question": question, "answer": answer}, ensure_ascii=False), flush=True)
    elif args.questions:
        print(f"{question}\n  {answer}", flush=True)
    else:
        print(answer)


def main(argv=None):
    """Runs mgq-generate."""
    args = parse_arguments(argv)
    run("mgq-generate", lambda: generate(args))


if __name__ == "__main__":
    main()
