//===- DataReaderTest.cpp - Records of training data ----------------------===//

#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Philox.h"
#include "runtime/src/common/Program.h"
#include "test/runtime/TestFiles.h"
#include "test/runtime/ToyModel.h"
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::rt;
using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {
struct Data : testing::Test {
  TempDir dir;

  /// Writes a file of these tensors and metadata.
  std::string write(const std::string &name, const Tensors &tensors,
                    const std::map<std::string, std::string> &metadata = {}) {
    writeFile(dir / name, tensorFile(tensors, metadata));
    return dir / name;
  }

  std::string error(const Tensors &tensors,
                    const std::map<std::string, std::string> &metadata = {}) {
    std::string path = write("d.safetensors", tensors, metadata);
    std::string text = errorOf([&] { DataReader(mgq_program_table, {path}); });
    EXPECT_THAT(text, HasSubstr(path));
    return text;
  }

  static std::vector<int64_t> ids(const DataReader &data, int64_t record) {
    std::vector<int64_t> values(2);
    data.load(record, 0, reinterpret_cast<std::byte *>(values.data()));
    return values;
  }
};
} // namespace

TEST_F(Data, ReadsRecordsRowsAndSeveralFiles) {
  Tensors rows = toyData(2, 1), records = toyData(3, 2);
  rows["ids"] = tensor<int64_t>("I64", {4}, {0, 1, 2, 3});
  records["ids"] = tensor<int64_t>("I64", {3, 2}, {4, 0, 3, 3, 1, 2});
  DataReader data(mgq_program_table, {write("a", rows), write("b", records)});
  EXPECT_EQ(data.records(), 5);
  EXPECT_THAT(ids(data, 0), ElementsAre(0, 1));
  EXPECT_THAT(ids(data, 1), ElementsAre(2, 3));
  EXPECT_THAT(ids(data, 2), ElementsAre(4, 0));
  EXPECT_THAT(ids(data, 4), ElementsAre(1, 2));
}

TEST_F(Data, NamesMissingTensorsTypesAndShapes) {
  Tensors tensors = toyData(2, 1);
  tensors.erase("labels");
  tensors["label"] = tensor<int64_t>("I64", {1}, {0});
  EXPECT_THAT(error(tensors), HasSubstr("no tensor 'labels', an input of the "
                                        "model; it has: label, "));
  tensors = toyData(2, 1);
  tensors["ids"] = tensor<int32_t>("I32", {2, 2}, {0, 1, 2, 3});
  EXPECT_THAT(error(tensors), HasSubstr("'ids' has type I32, expected I64"));
  tensors["ids"] = tensor<int64_t>("I64", {3}, {0, 1, 2});
  EXPECT_THAT(error(tensors),
              HasSubstr("'ids' has shape [3], expected records of [2] or rows "
                        "of it, a multiple of 2"));
  tensors["ids"] = tensor<int64_t>("I64", {2, 1}, {0, 1});
  EXPECT_THAT(error(tensors), HasSubstr("'ids' has shape [2, 1]"));
  tensors["ids"] = tensor<int64_t>("I64", {1, 2}, {0, 1});
  EXPECT_THAT(error(tensors), HasSubstr("has 2 records, 'ids' has 1"));
  EXPECT_THAT(error(toyData(0, 1)), HasSubstr("has no records"));
}

TEST_F(Data, ChecksIndices) {
  Tensors tensors = toyData(2, 1);
  tensors["ids"] = tensor<int64_t>("I64", {2, 2}, {0, 1, 4, 5});
  EXPECT_THAT(
      error(tensors),
      HasSubstr("input 'ids' has the value 5 in record 1, expected 0 to 4"));
  tensors["ids"] = tensor<int64_t>("I64", {2, 2}, {0, -100, 4, 4});
  EXPECT_THAT(error(tensors), HasSubstr("value -100 in record 0"));
  tensors = toyData(2, 1);
  tensors["labels"] = tensor<int64_t>("I64", {2, 2}, {0, -100, -1, 3});
  EXPECT_THAT(error(tensors), HasSubstr("input 'labels' has the value -1 in "
                                        "record 1, expected 0 to 3 or -100"));
}

TEST_F(Data, ComparesMetadata) {
  EXPECT_THAT(error(toyData(2, 1), {{"mgq.length", "32"}}),
              HasSubstr("'mgq.length' is '32', the model's is '24'"));
  // Other keys do not matter.
  DataReader data(mgq_program_table,
                  {write("a", toyData(2, 1),
                         {{"mgq.length", "24"}, {"producer", "other"}})});
  EXPECT_EQ(data.records(), 2);
}

TEST_F(Data, NormalisesImages) {
  Tensors tensors = toyData(1, 1);
  std::vector<uint8_t> bytes(24, 0);
  bytes[0] = 255; // Channel 0 of sample 0.
  bytes[17] = 51; // Channel 1 of sample 1.
  tensors["pixels"] = tensor<uint8_t>("U8", {1, 2, 3, 2, 2}, bytes);
  EXPECT_THAT(error(tensors), HasSubstr("'pixels.mean' is missing"));
  EXPECT_THAT(error(tensors, {{"pixels.mean", "0.5"}}),
              HasSubstr("'pixels.std' is missing"));
  EXPECT_THAT(error(tensors, {{"pixels.mean", "0.5,0.5"}, {"pixels.std", "1"}}),
              HasSubstr("metadata 'pixels.mean' is '0.5,0.5', expected one "
                        "number, or one for each of the 3 channels of [2, 3, "
                        "2, 2]"));
  EXPECT_THAT(error(tensors, {{"pixels.mean", "x"}, {"pixels.std", "1"}}),
              HasSubstr("metadata 'pixels.mean' is 'x'"));
  EXPECT_THAT(error(tensors, {{"pixels.mean", "0"}, {"pixels.std", "1 1 0"}}),
              HasSubstr("'pixels.std' is 0 for channel 2"));
  DataReader data(mgq_program_table,
                  {write("a", tensors,
                         {{"pixels.mean", "[0.5, 0.25, 0.125]"},
                          {"pixels.std", "0.5, 0.25, 2"}})});
  float values[24];
  data.load(0, 1, reinterpret_cast<std::byte *>(values));
  EXPECT_EQ(values[0], (1.0f - 0.5f) / 0.5f);
  EXPECT_EQ(values[1], -1.0f);
  EXPECT_EQ(values[17], (51.0f / 255.0f - 0.25f) / 0.25f);
  EXPECT_EQ(values[23], -0.125f / 2);
}

/// One image input of a shape in a program of its own.
struct ImageProgram {
  std::vector<int64_t> shape;
  mgq_input input = {};
  std::vector<mgq_pair> pairs;
  mgq_program program = {};

  explicit ImageProgram(std::vector<int64_t> dims,
                        std::vector<mgq_pair> metadata = {})
      : shape(std::move(dims)), pairs(std::move(metadata)) {
    int64_t bytes = 4 * elementCount(shape).value();
    input = {"pixels",
             {MGQ_F32, static_cast<int32_t>(shape.size()), shape.data(), bytes},
             0,
             0,
             0};
    program.inputs = &input;
    program.input_count = 1;
    program.metadata = pairs.data();
    program.metadata_count = static_cast<int32_t>(pairs.size());
  }
};

// Channels are the third axis from the end: images of a sample are before them.
// A clip, [sample, channel, frame, height, width], has them second.
TEST_F(Data, FindsChannelsOfImagesAndClips) {
  std::map<std::string, std::string> metadata = {{"pixels.mean", "0,0.5,1"},
                                                 {"pixels.std", "1"}};
  std::vector<uint8_t> zeros(2 * 3 * 2, 0);
  auto load = [&](const Shape &shape) {
    ImageProgram model(shape);
    Shape file = shape;
    file.insert(file.begin(), 1);
    std::string path =
        write("a", {{"pixels", tensor<uint8_t>("U8", file, zeros)}}, metadata);
    std::vector<float> values(zeros.size());
    DataReader(model.program, {path})
        .load(0, 0, reinterpret_cast<std::byte *>(values.data()));
    return values;
  };
  EXPECT_THAT(load({1, 2, 3, 2, 1}), ElementsAre(0, 0, -0.5f, -0.5f, -1, -1, 0,
                                                 0, -0.5f, -0.5f, -1, -1));
  EXPECT_THAT(load({1, 3, 2, 2, 1}), ElementsAre(0, 0, 0, 0, -0.5f, -0.5f,
                                                 -0.5f, -0.5f, -1, -1, -1, -1));
  metadata["pixels.std"] = "1,1";
  ImageProgram model({1, 2, 3, 2, 1});
  std::string path =
      write("b", {{"pixels", tensor<uint8_t>("U8", {1, 2, 3, 2, 1}, zeros)}},
            metadata);
  EXPECT_THAT(errorOf([&] { DataReader(model.program, {path}); }),
              HasSubstr("metadata 'pixels.mean' has 3 numbers, 'pixels.std' "
                        "has 2"));
}

// How images are normalised belongs to the model, also where pixels are F32.
TEST_F(Data, ComparesNormalisation) {
  ImageProgram model({1, 3, 1, 1},
                     {{"pixels.mean", "0.5,0.25,1"}, {"pixels.std", "1"}});
  Tensors floats = {{"pixels", tensor<float>("F32", {1, 3, 1, 1}, {0, 0, 0})}};
  DataReader same(model.program,
                  {write("a", floats, {{"pixels.mean", "[0.50, 0.25, 1.0]"}})});
  EXPECT_EQ(same.records(), 1);
  std::string path = write("b", floats, {{"pixels.mean", "0.5,0.25,0.5"}});
  EXPECT_THAT(errorOf([&] { DataReader(model.program, {path}); }),
              HasSubstr("'" + path +
                        "' was made for another model: metadata 'pixels.mean' "
                        "is '0.5,0.25,0.5', the model's is '0.5,0.25,1'"));
}

// Keys of dropout are no data.
TEST_F(Data, LeavesKeysOut) {
  ImageProgram model({1, 3, 1, 1});
  static const int64_t four = 4;
  mgq_input inputs[] = {model.input,
                        {"mgq.random.7", {MGQ_I64, 1, &four, 32}, 0, 0, 0}};
  model.program.inputs = inputs;
  model.program.input_count = 2;
  Tensors floats = {{"pixels", tensor<float>("F32", {1, 3, 1, 1}, {1, 2, 3})}};
  DataReader data(model.program, {write("a", floats)});
  EXPECT_EQ(data.records(), 1);
  EXPECT_EQ(randomOpOf(inputs[0]), -1);
  EXPECT_EQ(randomOpOf(inputs[1]), 7);
}

/// Resident bytes of files that this process has mapped.
static int64_t residentFileBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("RssFile:", 0) == 0)
      return std::stoll(line.substr(8)) * 1024;
  return 0;
}

// Reading a large file leaves its pages with the system.
TEST_F(Data, KeepsNothingOfWhatItRead) {
  constexpr int64_t side = 256, records = 128; // 25 MB of U8.
  ImageProgram model({1, 3, side, side});
  std::vector<uint8_t> bytes(records * 3 * side * side, 7);
  std::string path = write(
      "a", {{"pixels", tensor<uint8_t>("U8", {records, 3, side, side}, bytes)}},
      {{"pixels.mean", "0"}, {"pixels.std", "1"}});
  DataReader data(model.program, {path});
  std::vector<float> values(3 * side * side);
  int64_t before = residentFileBytes();
  for (int64_t i = 0; i < records; ++i) {
    data.prefetch(i);
    data.load(i, 0, reinterpret_cast<std::byte *>(values.data()));
  }
  EXPECT_EQ(values[5], 7 / 255.0f);
  EXPECT_LT(residentFileBytes() - before, 2 << 20);
}

TEST(RecordOrder, FollowsTheFile) {
  RecordOrder order(7, 3, false, 1);
  EXPECT_EQ(order.stepsPerEpoch(), 2);
  EXPECT_EQ(order.recordOf(0, 0), 0);
  EXPECT_EQ(order.recordOf(1, 2), 5);
  EXPECT_EQ(order.recordOf(2, 1), 1); // The next epoch; record 6 is dropped.
  EXPECT_THAT(errorOf([] { RecordOrder(2, 3, false, 1); }),
              HasSubstr("2 records, fewer than the 3 micro-batches"));
}

TEST(RecordOrder, PermutesEachEpoch) {
  auto epoch = [](uint64_t seed, int64_t number) {
    RecordOrder order(100, 10, true, seed);
    std::vector<int64_t> records;
    for (int64_t i = 0; i < 100; ++i)
      records.push_back(order.recordOf(number * 10 + i / 10, i % 10));
    return records;
  };
  std::vector<int64_t> all(100);
  for (int64_t i = 0; i < 100; ++i)
    all[i] = i;
  EXPECT_THAT(epoch(42, 0), testing::UnorderedElementsAreArray(all));
  EXPECT_NE(epoch(42, 0), all);
  EXPECT_NE(epoch(42, 0), epoch(42, 1));
  EXPECT_NE(epoch(42, 0), epoch(43, 0));
  EXPECT_EQ(epoch(42, 3), epoch(42, 3));
}

// The authors' known answers.
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                     {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}
