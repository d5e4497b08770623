//===- LaunchEnvironment.h - What a launcher says ---------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_LOCAL_LAUNCHENVIRONMENT_H
#define MGQ_RUNTIME_LOCAL_LAUNCHENVIRONMENT_H

#include <cstdint>
#include <string>

namespace mgq::rt {

/// Which of a run's processes this one is, by the variables of its launcher:
/// mpirun's of Open MPI; torchrun's RANK, WORLD_SIZE, LOCAL_RANK; Slurm's
/// SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID. The latter two need MASTER_ADDR
/// and MASTER_PORT.
struct LaunchEnvironment {
  /// The plugin that connects the processes, "mpi" or "tcp"; null: there is no
  /// other process.
  const char *transport = nullptr;
  int32_t size = 0;       ///< Processes; 0: nothing has launched this one.
  int32_t rank = 0;       ///< For "tcp".
  int32_t localRank = -1; ///< Among those on this machine, -1: not known.
  std::string host;       ///< For "tcp": where rank 0 is.
  int port = 0;           ///< Where it listens.
};

/// Throws Error for variables that make no sense.
LaunchEnvironment launchEnvironment();

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_LAUNCHENVIRONMENT_H
