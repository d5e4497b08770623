//===- LaunchEnvironment.cpp - What a launcher says -----------------------===//

#include "runtime/src/local/LaunchEnvironment.h"
#include "runtime/src/common/Error.h"
#include <charconv>
#include <cstdlib>
#include <cstring>

using namespace mgq::rt;

static constexpr int mostPort = 65535;

static const char *valueOf(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : nullptr;
}

/// The number in a variable, from `least` to `most`; `otherwise` where it is
/// not set.
static int32_t numberOf(const char *name, int32_t otherwise, int32_t least,
                        int32_t most) {
  const char *value = valueOf(name);
  if (!value)
    return otherwise;
  int32_t number = 0;
  const char *end = value + strlen(value);
  auto [stop, code] = std::from_chars(value, end, number);
  if (code != std::errc() || stop != end || number < least || number > most)
    fail("the variable {} is '{}', expected a number from {} to {}", name,
         value, least, most);
  return number;
}

/// Where rank 0 of processes without MPI is.
static void findMaster(LaunchEnvironment &found, const char *launcher) {
  for (const char *name : {"MASTER_ADDR", "MASTER_PORT"})
    if (!valueOf(name))
      fail("the variable {} is not set; {} has started {} processes, and it "
           "says where rank 0 is",
           name, launcher, found.size);
  found.transport = "tcp";
  found.host = valueOf("MASTER_ADDR");
  found.port = numberOf("MASTER_PORT", 0, 1, mostPort);
  // torchrun keeps the port for itself then.
  const char *store = valueOf("TORCHELASTIC_USE_AGENT_STORE");
  if (store && strcmp(store, "True") == 0)
    found.port += found.port < mostPort ? 1 : -1;
}

LaunchEnvironment mgq::rt::launchEnvironment() {
  LaunchEnvironment found;
  if (valueOf("OMPI_COMM_WORLD_SIZE")) {
    found.size = numberOf("OMPI_COMM_WORLD_SIZE", 0, 1, INT32_MAX);
    found.localRank =
        numberOf("OMPI_COMM_WORLD_LOCAL_RANK", -1, 0, found.size - 1);
    if (found.size > 1)
      found.transport = "mpi";
    return found;
  }
  bool isSlurm = false;
  const char *rank = "RANK", *size = "WORLD_SIZE", *local = "LOCAL_RANK";
  if (!valueOf(rank) || !valueOf(size)) {
    // A job's script has most of a task's variables, too.
    isSlurm = valueOf("SLURM_STEP_ID") || valueOf("MASTER_ADDR");
    rank = "SLURM_PROCID", size = "SLURM_NTASKS", local = "SLURM_LOCALID";
    if (!isSlurm || !valueOf(rank) || !valueOf(size))
      return found;
  }
  found.size = numberOf(size, 0, 1, INT32_MAX);
  found.rank = numberOf(rank, 0, 0, found.size - 1);
  found.localRank = numberOf(local, -1, 0, found.size - 1);
  if (found.size > 1)
    findMaster(found, isSlurm ? "srun" : "a launcher");
  return found;
}
