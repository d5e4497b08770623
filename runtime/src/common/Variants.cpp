//===- Variants.cpp - A rank's programs for several micro-batches ---------===//

#include "runtime/src/common/Variants.h"
#include <algorithm>

using namespace mgq::rt;

Variant::Variant(const mgq_program &program, const Options &options,
                 const Shared &shared)
    : view(program, shared.group.rank()),
      executor(view, shared.arena, shared.weights, shared.trace, shared.pulse),
      optimizer(view, options, shared.arena),
      runner(view, options,
             StepRunner::Parts{shared.arena, executor, optimizer,
                               shared.clipping, shared.trace, shared.group}) {}

Variants::Variants(const mgq_program &program, const Options &options,
                   const Variant::Shared &shared) {
  for (const mgq_program *variant : variantsOf(program)) {
    list.emplace_back(*variant, options, shared);
    if (variant == &program)
      current = &list.back();
  }
}

void Variants::use(int64_t count) {
  Variant &next =
      *std::find_if(list.begin(), list.end(), [&](const Variant &variant) {
        return variant.view.program.micro_batches == count;
      });
  next.runner.residuals().follow(current->runner.residuals());
  current = &next;
}

void Variants::setClockOffset(double seconds) {
  for (Variant &variant : list)
    variant.runner.setClockOffset(seconds);
}

SentBytes Variants::sent() const {
  SentBytes all;
  for (const Variant &variant : list) {
    SentBytes sent = variant.runner.sent();
    for (size_t i = 0; i < std::size(all.of); ++i)
      all.of[i] += sent.of[i];
  }
  return all;
}

CommunicationTime Variants::communication() const {
  CommunicationTime all;
  for (const Variant &variant : list) {
    const CommunicationTime &time = variant.runner.communication();
    all.total += time.total;
    all.hidden += time.hidden;
    all.largest += time.largest;
  }
  return all;
}
