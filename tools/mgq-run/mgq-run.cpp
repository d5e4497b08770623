//===- mgq-run.cpp - Runs an ONNX graph forward, once ---------------------===//

#include "compiler/Driver/Run.h"

int main(int argc, char **argv) { return mgq::runMain(argc, argv); }
