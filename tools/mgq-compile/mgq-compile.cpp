//===- mgq-compile.cpp - ONNX training graph in, executable out -----------===//

#include "compiler/Driver/Compile.h"

int main(int argc, char **argv) { return mgq::compileMain(argc, argv); }
