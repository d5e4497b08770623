//===- CheckpointTest.cpp - Saves and restores training -------------------===//

#include "runtime/src/common/Checkpoint.h"
#include "runtime/src/common/Log.h"
#include "runtime/src/common/Weights.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

using namespace mgq::rt;
using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {
struct CheckpointTest : testing::Test {
  const mgq_program &program = mgq_program_table;
  TempDir dir;
  RankView view{program, 0};
  int64_t arenaBytes = view.tables.arena_bytes;
  Arena arena{arenaBytes};
  ThreadTransport transport{1, 0};
  Group group{transport.end(0)};
  Transfer transfer{view, arena, group};
  TrainerState state;

  void SetUp() override {
    writeToyWeights(dir / "toy.weights");
    Weights(view, dir.path).load(arena);
    state.step = 5;
    state.updates = 4;
    state.emptySteps = 1;
    state.clipHistory = {0.1, 1e-30, 1 / 3.0};
    state.seed = ~uint64_t{0};
    state.epoch = 0.5;
  }

  std::string save(int64_t step, int64_t limit = 0) {
    state.step = step;
    return saveCheckpoint(dir / "out", transfer, state, limit);
  }

  std::string loadError(const std::string &path) {
    Arena other(arenaBytes);
    Transfer there(view, other, group);
    return errorOf([&] { loadCheckpoint(path, there); });
  }
};
} // namespace

TEST_F(CheckpointTest, RestoresEverything) {
  for (int i = 0; i < 48; ++i)
    arena.floatsAt(view.tables.places[1].variance_offset)[i] =
        static_cast<float>(i);
  std::string path = save(5);
  EXPECT_EQ(path, dir / "out/checkpoint-5");
  EXPECT_THAT(namesIn(path),
              ElementsAre("model.safetensors", "optimizer.safetensors",
                          "trainer_state.json"));
  SafetensorsFile model(path + "/model.safetensors");
  EXPECT_EQ(model.find("head.weight")->shape, (Shape{4, 12})); // Canonical.

  Arena other(arenaBytes);
  Transfer there(view, other, group);
  TrainerState loaded = loadCheckpoint(path, there);
  EXPECT_EQ(memcmp(arena.at(0), other.at(0), arenaBytes), 0);
  EXPECT_EQ(loaded.step, 5);
  EXPECT_EQ(loaded.updates, 4);
  EXPECT_EQ(loaded.emptySteps, 1);
  EXPECT_EQ(loaded.seed, ~uint64_t{0});
  EXPECT_EQ(loaded.clipHistory, state.clipHistory);
}

// A parameter stored as bf16 is saved so, and its f32 value beside it.
TEST_F(CheckpointTest, KeepsStoredTypesAndMasters) {
  float *bias = nullptr;
  for (int32_t i = 0; i < view.tables.place_count; ++i)
    if (const mgq_place &place = view.tables.places[i];
        program.params[place.param].name == std::string("bias"))
      bias = arena.floatsAt(place.value_offset);
  ASSERT_NE(bias, nullptr);
  for (int i = 0; i < 4; ++i)
    bias[i] = 1 + static_cast<float>(i) * 0x1p-9f; // Not all in bf16.
  std::string path = save(5);
  SafetensorsFile model(path + "/model.safetensors"),
      optimizer(path + "/optimizer.safetensors");
  EXPECT_EQ(model.find("bias")->type, MGQ_BF16);
  EXPECT_EQ(model.find("head.weight")->type, MGQ_F32);
  ASSERT_EQ(optimizer.find("master/bias")->type, MGQ_F32);
  EXPECT_EQ(memcmp(optimizer.find("master/bias")->data, bias, 16), 0);
  EXPECT_EQ(optimizer.find("momentum/bias")->type, MGQ_F32);
  EXPECT_EQ(optimizer.find("master/head.weight"), nullptr);

  Arena other(arenaBytes);
  Transfer there(view, other, group);
  loadCheckpoint(path, there);
  EXPECT_EQ(memcmp(arena.at(0), other.at(0), arenaBytes), 0);
}

// Of two files of different checkpoints one would be ignored.
TEST_F(CheckpointTest, RefusesMastersOfOtherValues) {
  std::string path = save(5);
  std::string model = readFile(path + "/model.safetensors");
  SafetensorsFile file(path + "/model.safetensors");
  std::string bias(reinterpret_cast<const char *>(file.find("bias")->data), 8);
  size_t at = model.rfind(bias);
  ASSERT_NE(at, std::string::npos);
  model[at] ^= 1;
  writeFile(path + "/model.safetensors", model);
  EXPECT_THAT(loadError(path),
              HasSubstr("do not belong together: tensor 'bias' is not "
                        "'master/bias' rounded to BF16"));
}

TEST_F(CheckpointTest, KeepsTheLatest) {
  for (int64_t step : {2, 4, 10, 6})
    save(step, 2);
  EXPECT_THAT(namesIn(dir / "out"),
              ElementsAre("checkpoint-10", "checkpoint-6"));
  save(6, 2); // Again: exchanged.
  std::filesystem::create_directory(dir / "out/.tmp-checkpoint-99");
  std::filesystem::create_directory(dir /
                                    "out/checkpoint-77"); // Not a whole one.
  std::filesystem::create_directory(dir / "out/checkpoint-x");
  EXPECT_EQ(latestCheckpoint(dir / "out"), dir / "out/checkpoint-10");
  EXPECT_EQ(latestCheckpoint(dir / "nowhere"), "");
  cleanTemporary(dir / "out");
  EXPECT_FALSE(fileExists(dir / "out/.tmp-checkpoint-99"));
}

TEST_F(CheckpointTest, RefusesOthers) {
  std::string path = save(5);
  EXPECT_THAT(loadError(dir / "nowhere"), HasSubstr("is not a folder"));
  EXPECT_THAT(loadError(dir.path), HasSubstr("has no trainer_state.json"));
  std::string json = readFile(path + "/trainer_state.json");
  std::string other = json;
  other.replace(other.find("toy-fingerprint"), 3, "abc");
  writeFile(path + "/trainer_state.json", other);
  EXPECT_THAT(loadError(path), HasSubstr("of another model"));
  writeFile(path + "/trainer_state.json", json.substr(0, json.size() / 2));
  EXPECT_THAT(loadError(path), HasSubstr("trainer_state.json' is damaged"));
  writeFile(path + "/trainer_state.json", "{\"version\": 1}");
  EXPECT_THAT(loadError(path), HasSubstr("is damaged"));
  writeFile(path + "/trainer_state.json", json);

  std::string model = readFile(path + "/model.safetensors");
  std::string renamed = model;
  renamed.replace(renamed.find("embed.weight"), 5, "other");
  writeFile(path + "/model.safetensors", renamed);
  EXPECT_THAT(loadError(path), HasSubstr("no tensor 'embed.weight'"));
  const float one = 1;
  writeSafetensors(path + "/model.safetensors", {{"embed.weight", {1}, &one}},
                   {});
  EXPECT_THAT(loadError(path), HasSubstr("'embed.weight' is F32 [1], expected "
                                         "F32 [5, 4]"));
  writeFile(path + "/model.safetensors", model.substr(0, model.size() - 1));
  EXPECT_THAT(loadError(path), HasSubstr("is truncated"));
}

TEST_F(CheckpointTest, LoadsParametersOfAnyFloatType) {
  SafetensorsFile saved(save(5) + "/model.safetensors");
  Tensors narrow;
  for (const auto &[name, view] : saved.tensors()) {
    std::vector<uint16_t> halves(view.bytes / 2), upper; // BF16, cut.
    memcpy(halves.data(), view.data, view.bytes);
    size_t step = view.type == MGQ_F32 ? 2 : 1; // "bias" is BF16 already.
    for (size_t i = step - 1; i < halves.size(); i += step)
      upper.push_back(halves[i]);
    narrow[name] = tensor("BF16", view.shape, upper);
  }
  writeFile(dir / "narrow", tensorFile(narrow));
  Arena other(arenaBytes);
  Transfer there(view, other, group);
  loadParameters(dir / "narrow", there);
  for (int32_t i : trainableParams(program)) {
    int64_t count = paramElements(program.params[i]);
    std::vector<float> is(count);
    there.read(i, ParamPart::Value, 0, count, is.data());
    std::vector<uint16_t> halves(2 * count), upper;
    memcpy(halves.data(), is.data(), 4 * count);
    for (int64_t j = 0; j < count; ++j) {
      EXPECT_EQ(halves[2 * j], 0);
      upper.push_back(halves[2 * j + 1]);
    }
    EXPECT_EQ(tensor("BF16", {count}, upper).bytes,
              narrow[program.params[i].name].bytes);
  }
}

TEST_F(CheckpointTest, RefusesOtherParameters) {
  std::string path = save(5) + "/model.safetensors";
  auto error = [&] { return errorOf([&] { loadParameters(path, transfer); }); };
  EXPECT_EQ(error(), "no error");
  Tensors tensors;
  SafetensorsFile saved(path);
  for (const auto &[name, view] : saved.tensors())
    tensors[name] = {typeName(view.type),
                     view.shape,
                     {reinterpret_cast<const char *>(view.data),
                      static_cast<size_t>(view.bytes)}};
  auto errorAfter = [&](auto change) {
    Tensors changed = tensors;
    change(changed);
    writeFile(path, tensorFile(changed));
    return error();
  };
  EXPECT_THAT(errorAfter([](Tensors &t) { t.erase("embed.weight"); }),
              HasSubstr("it has no tensor 'embed.weight', which this program "
                        "trains"));
  EXPECT_THAT(errorAfter([](Tensors &t) { t["x"] = t["embed.weight"]; }),
              HasSubstr("its tensor 'x' is not trained by this program"));
  EXPECT_THAT(errorAfter([](Tensors &t) { t["embed.weight"].shape = {4, 5}; }),
              HasSubstr("'embed.weight' is F32 [4, 5], expected F32 [5, 4]"));
  EXPECT_THAT(errorAfter([](Tensors &t) { t["embed.weight"].type = "I32"; }),
              HasSubstr("'embed.weight' is I32 [5, 4], expected F32 [5, 4]"));
}

TEST_F(CheckpointTest, SurvivesDamage) {
  std::string path = save(5);
  std::mt19937 random(3);
  std::string json = readFile(path + "/trainer_state.json");
  for (int i = 0; i < 300; ++i) {
    std::string bad = json;
    bad[random() % bad.size()] = static_cast<char>(random());
    writeFile(path + "/trainer_state.json", bad);
    try {
      loadCheckpoint(path, transfer);
    } catch (const Error &) {
    }
  }
}

// A frozen parameter may be copied as it is and rounded to bf16 beside that; to
// no other type.
TEST_F(CheckpointTest, FrozenWeightsAreRounded) {
  mgq_place places[] = {{3, -1, 0, -1, -1, -1}, {3, MGQ_BF16, 64, -1, -1, -1}};
  mgq_rank rank = {};
  rank.places = places;
  rank.place_count = 2;
  mgq_program own = program;
  own.ranks = &rank;
  RankView ownView(own, 0);
  float values[4] = {1.00390625F, 1.01171875F, -3e38F, NAN};
  std::string bytes = readFile(dir / "toy.weights");
  memcpy(bytes.data() + toy::frozenAt, values, sizeof values);
  writeFile(dir / "toy.weights", bytes);
  Arena there(128);
  Weights(ownView, dir.path).load(there);
  EXPECT_EQ(memcmp(there.at(0), values, sizeof values), 0);
  const uint16_t rounded[4] = {0x3f80, 0x3f82, 0xff62, 0x7fc0};
  EXPECT_EQ(memcmp(there.at(64), rounded, sizeof rounded), 0);
  places[1].type = MGQ_F16;
  EXPECT_THAT(errorOf([&] { Weights(ownView, dir.path).load(there); }),
              HasSubstr("parameter 'frozen' of type F32 as 2"));
}

TEST_F(CheckpointTest, WeightsNameWhatIsWrong) {
  auto error = [&] { return errorOf([&] { Weights(view, dir.path); }); };
  EXPECT_EQ(error(), "no error");
  // BF16 in the file, f32 in the arena.
  std::string bytes = readFile(dir / "toy.weights");
  uint16_t bits;
  memcpy(&bits, bytes.data() + toy::biasAt, 2);
  uint32_t wide = uint32_t{bits} << 16;
  EXPECT_EQ(memcmp(arena.at(view.tables.places[2].value_offset), &wide, 4), 0);
  writeFile(dir / "toy.weights", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(error(),
              HasSubstr("toy.weights' is too short: parameter 'frozen'"));
  std::filesystem::remove(dir / "toy.weights");
  EXPECT_THAT(error(),
              HasSubstr("toy.weights', which holds parameter 'embed.weight'"));
}

TEST_F(CheckpointTest, LogIsCutAtTheResumedStep) {
  std::string path = dir / "log.jsonl";
  JsonLine line;
  {
    LogFile log;
    log.open(path, -1);
    for (int64_t step = 1; step <= 4; ++step) {
      line.add("step", step);
      line.add("loss", step == 3 ? NAN : 0.1);
      line.add("whole", 2.0);
      log.write(line.finish());
    }
    log.write("{\"step\": 5, \"lo"); // Killed here.
  }
  std::string text = readFile(path);
  EXPECT_THAT(text,
              HasSubstr("{\"step\": 1, \"loss\": 0.1, \"whole\": 2.0}\n"));
  EXPECT_THAT(text, HasSubstr("{\"step\": 3, \"loss\": null"));
  for (int64_t step : {9, 2}) {
    LogFile log;
    log.open(path, step);
  }
  EXPECT_EQ(readFile(path), text.substr(0, text.find("{\"step\": 3")));
  LogFile log;
  log.open(path, -1);
  EXPECT_EQ(readFile(path), "");
  EXPECT_THAT(errorOf([&] { LogFile().open(dir / "no/log", -1); }),
              HasSubstr("no/log"));
}
