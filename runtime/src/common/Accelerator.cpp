//===- Accelerator.cpp - A device that works beside the host --------------===//

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Setup.h"
#include <cstring>

using namespace mgq::rt;

[[noreturn]] static void refuse(const char *what, const char *supported) {
  throw CommonError(fmt::format("not supported yet: {} on a GPU; supported: {}",
                                what, supported));
}

void mgq::rt::checkAccelerated(const mgq_program &program,
                               const Options &options) {
  if (!program.open_device) {
    if (options.cudaGraphs)
      failUsage("--cuda-graphs is for programs compiled with --target=cuda; "
                "this one runs on the CPU");
    return;
  }
  if (program.variant_count > 0)
    refuse("--micro-batches=MIN:MAX", "--micro-batches=N");
}

/// Throws on all ranks if two of them have the same accelerator.
static void checkUnshared(const Accelerator &mine, Group &group) {
  struct Word {
    char identity[64];
  };
  Word word = {};
  strncpy(word.identity, mine.identity().c_str(), sizeof word.identity - 1);
  std::vector<Word> all = group.allGather(word);
  for (int32_t rank = 0; rank < group.size(); ++rank)
    for (int32_t other = 0; other < rank; ++other)
      if (!strcmp(all[rank].identity, all[other].identity))
        throw CommonError(fmt::format(
            "ranks {} and {} would share one GPU ({}); each rank needs its own",
            other, rank, all[rank].identity));
}

std::unique_ptr<Accelerator>
mgq::rt::openAccelerator(const mgq_program &program, Group &group,
                         const Host &host) {
  mgq_device_request request = {&program,       &group,  host.place,
                                host.ranksHere, nullptr, {}};
  group.agree([&] {
    program.open_device(&request);
    if (!request.device)
      throw Error(request.fault);
  });
  checkUnshared(*request.device, group);
  return std::move(request.device);
}
