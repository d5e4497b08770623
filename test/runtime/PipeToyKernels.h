//===- PipeToyKernels.h - What a generated object would hold ----*- C++ -*-===//
//
// Each kernel says its arguments: operands, then results.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_TEST_RUNTIME_PIPETOYKERNELS_H
#define MGQ_TEST_RUNTIME_PIPETOYKERNELS_H

#include "runtime/include/rt.h"

namespace pipetoy {
/// (a place that it writes). Fails as the environment says, for one stage.
mgq_kernel probeOf(int stage);

void embedForward(void *const *args, void *);  ///< (x, tied; h)
void embedBackward(void *const *args, void *); ///< (x, dh; dtied)
void layerForward(void *const *args, void *);  ///< (h, w, b; out)
void layerWeight(void *const *args, void *);   ///< (h, out, dout; dw, db)
void layerData(void *const *args, void *);     ///< (out, dout, w packed; dh)
/// (h, tied, labels; loss, accuracy, probabilities)
void headForward(void *const *args, void *);
/// (probabilities, labels, seed, h, tied; dh, dtied)
void headBackward(void *const *args, void *);
void countTargets(void *const *args, void *); ///< (labels; count)
void pack(void *const *args, void *);         ///< (w; w transposed)
} // namespace pipetoy

#endif // MGQ_TEST_RUNTIME_PIPETOYKERNELS_H
