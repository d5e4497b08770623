//===- Program.cpp - One rank's view of a program -------------------------===//

#include "runtime/src/common/Program.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Types.h"
#include <charconv>
#include <string_view>

using namespace mgq::rt;

/// Programs that take turns have the same samples and ranks.
static void checkVariants(const mgq_program &program) {
  int32_t before = 0;
  bool isListed = program.variant_count == 0;
  for (const mgq_program *variant : variantsOf(program)) {
    isListed |= variant == &program;
    if (variant->micro_batches <= before || variant->stages != program.stages ||
        variant->replicas != program.replicas ||
        variant->by_sample != program.by_sample ||
        samplesPerStep(*variant) != samplesPerStep(program) ||
        variant->param_count != program.param_count)
      fail("the program's tables are damaged: {} micro-batches of {} samples",
           variant->micro_batches, variant->micro_batch_size);
    before = variant->micro_batches;
  }
  if (!isListed)
    fail("the program's tables are damaged: the program to start with");
}

const mgq_program &mgq::rt::checkProgram(const mgq_program &program) {
  if (program.abi_version != MGQ_ABI_VERSION)
    fail("the program was made for version {} of the runtime, this is {}; "
         "compile it again",
         program.abi_version, MGQ_ABI_VERSION);
  if (trainableParams(program).empty())
    fail("the program trains no parameter");
  if (program.stages < 1 || program.replicas < 1 || program.micro_batches < 1)
    fail("the program's tables are damaged: {} stages, {} replicas, {} "
         "micro-batches",
         program.stages, program.replicas, program.micro_batches);
  for (int32_t i : trainableParams(program))
    if (program.params[i].owner < 0 ||
        program.params[i].owner >= program.stages)
      fail("the program's tables are damaged: parameter '{}' is owned by stage "
           "{}",
           program.params[i].name, program.params[i].owner);
  lossStage(program);
  checkVariants(program);
  return program;
}

std::vector<const mgq_program *>
mgq::rt::variantsOf(const mgq_program &program) {
  if (program.variant_count == 0)
    return {&program};
  return {program.variants, program.variants + program.variant_count};
}

const mgq_rank &mgq::rt::largestTables(const mgq_program &program,
                                       int32_t stage) {
  const mgq_rank *largest = &program.ranks[stage];
  for (const mgq_program *variant : variantsOf(program))
    if (variant->ranks[stage].arena_bytes > largest->arena_bytes)
      largest = &variant->ranks[stage];
  return *largest;
}

std::vector<int32_t> mgq::rt::trainableParams(const mgq_program &program) {
  std::vector<int32_t> indices;
  for (int32_t i = 0; i < program.param_count; ++i)
    if (program.params[i].trainable)
      indices.push_back(i);
  return indices;
}

/// The parameter of place number `i`.
static int32_t checkParam(const mgq_program &program, const mgq_place &place,
                          int32_t i) {
  if (place.param < 0 || place.param >= program.param_count)
    fail("the program's tables are damaged: place {} is of parameter {}, there "
         "are {}",
         i, place.param, program.param_count);
  return place.param;
}

std::vector<const mgq_place *>
mgq::rt::placesByParam(const mgq_program &program, const mgq_rank &rank) {
  std::vector<const mgq_place *> places(program.param_count);
  for (int32_t i = 0; i < rank.place_count; ++i) {
    const mgq_place &place = rank.places[i];
    places[checkParam(program, place, i)] = &place;
  }
  return places;
}

std::vector<bool> mgq::rt::usedParams(const mgq_program &program,
                                      const mgq_rank &rank) {
  std::vector<bool> used(program.param_count);
  for (const mgq_place *place : placesByParam(program, rank))
    if (place)
      used[place->param] = true;
  for (int32_t i = 0; i < rank.shard_count; ++i)
    for (int32_t j = 0; j < rank.shards[i].copy_count; ++j)
      used[checkParam(program, rank.shards[i].copies[j], j)] = true;
  forSequences(rank, [&](const mgq_sequence &sequence) {
    for (int32_t i = 0; i < sequence.call_count; ++i)
      for (int32_t j = 0; j < sequence.calls[i].arg_count; ++j) {
        const mgq_ref &ref = sequence.calls[i].args[j];
        if (ref.space != MGQ_SPACE_WEIGHT)
          continue;
        if (ref.index < 0 || ref.index >= program.param_count)
          fail("the program's tables are damaged: argument {} of call {}", j,
               sequence.calls[i].name);
        used[ref.index] = true;
      }
  });
  return used;
}

std::vector<bool> mgq::rt::loadedInputs(const mgq_program &program,
                                        const mgq_rank &rank) {
  std::vector<bool> loaded(program.input_count);
  forSequences(rank, [&](const mgq_sequence &sequence) {
    for (int32_t i = 0; i < sequence.load_count; ++i) {
      int32_t input = sequence.loads[i].input;
      if (input < 0 || input >= program.input_count)
        fail("the program's tables are damaged: load of input {}, there are {}",
             input, program.input_count);
      loaded[input] = true;
    }
  });
  return loaded;
}

int32_t mgq::rt::randomOpOf(const mgq_input &input) {
  static constexpr std::string_view prefix = MGQ_RANDOM_INPUT;
  std::string_view name = input.name;
  if (name.substr(0, prefix.size()) != prefix)
    return -1;
  int32_t number = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(),
                  number);
  if (number < 0 || input.tensor.type != MGQ_I64 || input.tensor.bytes != 32)
    fail("the program's tables are damaged: input '{}'", input.name);
  return number;
}

int32_t mgq::rt::lossStage(const mgq_program &program) {
  for (int32_t stage = 0; stage < program.stages; ++stage) {
    const mgq_rank &rank = program.ranks[stage];
    if (rank.loss.space == MGQ_SPACE_NONE)
      continue;
    if (rank.loss_chunk < 0 || rank.loss_chunk >= rank.chunk_count)
      break;
    return stage;
  }
  fail("the program's tables are damaged: no stage has the loss");
}

int64_t mgq::rt::paramElements(const mgq_param &param) {
  return elementCount(shapeOf(param.stored)).value_or(0);
}
