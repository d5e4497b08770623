//===- Setup.h - What ranks agree on before they train ----------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_SETUP_H
#define MGQ_RUNTIME_COMMON_SETUP_H

#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Options.h"

namespace mgq::rt {

/// Throws Error on all ranks if one runs another program, naming it.
void checkSameProgram(const mgq_program &program, Group &group);

/// Throws Error on all ranks if an option that must agree does not, naming it.
void checkSameOptions(const Options &options, Group &group);

/// Throws Error on all ranks if one reads other data, as far as a sample tells.
/// `option`: "--data".
void checkSameData(const DataReader &data, const char *option, Group &group);

/// Rank 0's options about files that it alone reads and writes.
struct Orders {
  bool resume, save, trace, profile, summary, gradients, replay;
  int64_t saveSteps;
};
Orders ordersOf(const Options &options);

/// Where a rank runs.
struct Host {
  int ranksHere = 1;     ///< Ranks on this machine.
  int32_t firstHere = 0; ///< The first of them.
  int32_t place = 0;     ///< This rank's number among them.
  bool single = true;    ///< All ranks are on one machine.
  int threads = 1;       ///< Cores for each rank that may run on this one's.
  int64_t bytesHere = 0; ///< Arenas of all ranks here.
  /// Added to this rank's clock it is rank 0's, in seconds.
  double clockOffset = 0;
};

/// Finds out with all ranks; `arenaBytes` is this rank's plan.
Host findHost(int64_t arenaBytes, Group &group);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_SETUP_H
