//===- LossScale.cpp - The factor on the backward seed --------------------===//

#include "runtime/src/common/LossScale.h"
#include "runtime/src/common/Options.h"
#include <algorithm>

using namespace mgq::rt;

LossScale::LossScale(const Options &options) : kind(options.lossScale) {
  state.scale = kind == LossScaleKind::Off      ? 1
                : kind == LossScaleKind::Static ? options.lossScaleValue
                                                : first;
  state.hysteresis = fullHysteresis;
}

void LossScale::stepped(bool overflow) {
  if (kind != LossScaleKind::Dynamic)
    return;
  if (overflow) {
    state.cleanSteps = 0;
    if (state.hysteresis > 1)
      --state.hysteresis;
    else
      state.scale = std::max(state.scale / 2, smallest);
  } else if (++state.cleanSteps == window) {
    state.cleanSteps = 0;
    state.hysteresis = fullHysteresis;
    state.scale = std::min(state.scale * 2, largest);
  }
}

LossScaleState LossScale::saved() const {
  return kind == LossScaleKind::Dynamic ? state : LossScaleState{};
}

void LossScale::restore(const LossScaleState &from) {
  if (kind == LossScaleKind::Dynamic && from.scale > 0)
    state = from;
}
