//===- Program.h - One rank's view of a program -----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_PROGRAM_H
#define MGQ_RUNTIME_COMMON_PROGRAM_H

#include "runtime/include/rt.h"
#include <vector>

namespace mgq::rt {

/// Checks that runtime and program agree. Throws Error.
const mgq_program &checkProgram(const mgq_program &program);

/// Stages times replicas.
inline int32_t rankCount(const mgq_program &program) {
  return program.stages * program.replicas;
}

/// Records of the data that make up a micro-batch.
inline int32_t recordsPerMicroBatch(const mgq_program &program) {
  return program.by_sample ? program.micro_batch_size : 1;
}

/// The same of a step, and samples of a step, all replicas together.
inline int64_t recordsPerStep(const mgq_program &program) {
  return int64_t{program.micro_batches} * program.replicas *
         recordsPerMicroBatch(program);
}
inline int64_t samplesPerStep(const mgq_program &program) {
  return int64_t{program.micro_batches} * program.replicas *
         program.micro_batch_size;
}

/// The programs that a run may change between, at least the one given.
std::vector<const mgq_program *> variantsOf(const mgq_program &program);

/// A stage's tables in the program whose arena is the largest.
const mgq_rank &largestTables(const mgq_program &program, int32_t stage);

/// A rank of a program: rank = replica * stages + stage.
struct RankView {
  RankView(const mgq_program &program, int32_t index)
      : program(program), index(index), stage(index % program.stages),
        replica(index / program.stages), tables(program.ranks[stage]) {}

  /// The rank of another stage in this replica.
  int32_t rankOfStage(int32_t other) const {
    return replica * program.stages + other;
  }
  /// The rank of this stage in another replica.
  int32_t rankOfReplica(int32_t other) const {
    return other * program.stages + stage;
  }

  /// Ranks that share the frozen weights that are spread (mgq_shard): the
  /// stages of a replica or, of one stage, the replicas.
  int32_t shardMembers() const {
    return program.stages > 1 ? program.stages : program.replicas;
  }
  int32_t shardMember() const { return program.stages > 1 ? stage : replica; }
  int32_t rankOfMember(int32_t other) const {
    return program.stages > 1 ? rankOfStage(other) : rankOfReplica(other);
  }

  /// Whether the places of a shard are in an arena of that size.
  bool isInside(const mgq_shard &shard, int64_t arenaBytes) const {
    return shard.slice_bytes >= 0 && shard.buffer >= 0 && shard.slice >= 0 &&
           shard.buffer + shard.slice_bytes * shardMembers() <= arenaBytes &&
           shard.slice + shard.slice_bytes <= arenaBytes;
  }

  const mgq_program &program;
  int32_t index, stage, replica;
  const mgq_rank &tables;
};

/// Indices of the trainable parameters, in program order.
std::vector<int32_t> trainableParams(const mgq_program &program);

/// Of each parameter of the program its place on a rank, or null.
std::vector<const mgq_place *> placesByParam(const mgq_program &program,
                                             const mgq_rank &rank);

/// Which parameters a rank uses: those with a place, and those whose mapped
/// bytes its calls read.
std::vector<bool> usedParams(const mgq_program &program, const mgq_rank &rank);

/// Which inputs a rank loads.
std::vector<bool> loadedInputs(const mgq_program &program,
                               const mgq_rank &rank);

/// The number of the dropout op whose key an input is, -1: the input is data.
int32_t randomOpOf(const mgq_input &input);

/// The stage that has the loss.
int32_t lossStage(const mgq_program &program);

/// Elements of a parameter.
int64_t paramElements(const mgq_param &param);

/// Calls visit(sequence) for all sequences of a rank.
template <typename Visit>
void forSequences(const mgq_rank &rank, Visit visit) {
  visit(rank.prepare_frozen);
  for (int32_t i = 0; i < rank.shard_count; ++i)
    visit(rank.shards[i].pack);
  visit(rank.prepare_trainable);
  visit(rank.count);
  for (int32_t i = 0; i < rank.chunk_count; ++i) {
    visit(rank.chunks[i].forward);
    visit(rank.chunks[i].backward);
    visit(rank.chunks[i].weight);
    visit(rank.chunks[i].evaluate);
  }
}

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_PROGRAM_H
