//===- SafetensorsTest.cpp - Reader and writer of safetensors files -------===//

#include "test/runtime/TestFiles.h"
#include <fcntl.h>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

using namespace mgq::rt;
using namespace test;
using testing::HasSubstr;

/// The error of opening a file with these bytes.
static std::string openError(const std::string &bytes) {
  TempDir dir;
  std::string path = dir / "x.safetensors";
  writeFile(path, bytes);
  std::string text = errorOf([&] { SafetensorsFile file(path); });
  if (text != "no error") {
    EXPECT_THAT(text, HasSubstr("x.safetensors"));
  }
  return text;
}

static std::string headerError(const std::string &header,
                               const std::string &data = "01234567") {
  return openError(rawTensorFile(header, data));
}

TEST(Safetensors, ReadsTypesShapesAndMetadata) {
  TempDir dir;
  writeFile(dir / "a",
            tensorFile({{"x", tensor<float>("F32", {2, 2}, {1, 2, 3, 4})},
                        {"n", tensor<int64_t>("I64", {}, {7})},
                        {"none", tensor<float>("F32", {0, 3}, {})}},
                       {{"mgq.length", "24"}}));
  SafetensorsFile file(dir / "a");
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("mgq.length"), "24");
  const TensorView *x = file.find("x");
  ASSERT_TRUE(x);
  EXPECT_EQ(x->type, MGQ_F32);
  EXPECT_EQ(x->shape, (Shape{2, 2}));
  float values[4];
  memcpy(values, x->data, 16);
  EXPECT_EQ(values[3], 4);
  EXPECT_EQ(integerAt(MGQ_I64, file.find("n")->data, 0), 7);
  EXPECT_EQ(file.find("none")->bytes, 0);
  EXPECT_EQ(file.find("y"), nullptr);
}

TEST(Safetensors, RefusesFilesOfAnotherKind) {
  EXPECT_THAT(openError(""), HasSubstr("is empty"));
  EXPECT_THAT(openError("abc"), HasSubstr("3 bytes"));
  EXPECT_THAT(openError(std::string(64, 'x')), HasSubstr("header length"));
  EXPECT_THAT(openError(std::string(8, '\0')), HasSubstr("not a JSON object"));
  EXPECT_THAT(openError(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("truncated"));
  EXPECT_THAT(headerError("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(headerError("{\"a\": "), HasSubstr("not a JSON object"));
  EXPECT_THAT(headerError("{\"a\": " + std::string(100000, '[')),
              HasSubstr("not a JSON object"));
  EXPECT_THAT(errorOf([] { SafetensorsFile file("/nowhere/x"); }),
              HasSubstr("cannot open '/nowhere/x'"));
  EXPECT_THAT(errorOf([] { SafetensorsFile file("/tmp"); }),
              HasSubstr("is not a file"));
}

TEST(Safetensors, ChecksEachEntry) {
  auto entry = [](const char *type, const char *shape, const char *offsets) {
    return headerError(std::string("{\"a\":{\"dtype\":\"") + type +
                       "\",\"shape\":" + shape +
                       ",\"data_offsets\":" + offsets + "}}");
  };
  EXPECT_EQ(entry("F32", "[2]", "[0,8]"), "no error");
  EXPECT_THAT(entry("F8_E4M3", "[8]", "[0,8]"), HasSubstr("not supported yet"));
  EXPECT_THAT(entry("F32", "[3]", "[0,8]"), HasSubstr("its shape [3] of F32"));
  EXPECT_THAT(entry("F32", "[-2]", "[0,8]"), HasSubstr("no valid shape"));
  EXPECT_THAT(entry("F32", "[2.0]", "[0,8]"), HasSubstr("no valid shape"));
  EXPECT_THAT(entry("F32", "[4294967296,4294967296]", "[0,8]"),
              HasSubstr("its shape"));
  EXPECT_THAT(entry("F32", "[2]", "[8,0]"), HasSubstr("data_offsets [8, 0]"));
  EXPECT_THAT(entry("F32", "[2]", "[0]"), HasSubstr("no valid data_offsets"));
  EXPECT_THAT(entry("F32", "[3]", "[0,12]"), HasSubstr("is truncated"));
  EXPECT_THAT(entry("F32", "[1]", "[0,4]"),
              HasSubstr("4 bytes after the last"));
  EXPECT_THAT(entry("F32", "[1]", "[4,8]"), HasSubstr("follows a gap"));
  EXPECT_THAT(headerError("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}"),
              HasSubstr("no dtype"));
  EXPECT_THAT(headerError("{\"a\":7}"), HasSubstr("no dtype"));
  EXPECT_THAT(headerError("{\"__metadata__\":{\"k\":1}}"),
              HasSubstr("metadata 'k' is not text"));
  EXPECT_THAT(
      headerError(
          "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}"),
      HasSubstr("overlaps another"));
  EXPECT_THAT(
      headerError(
          "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"),
      HasSubstr("'a' twice"));
}

// Whatever a file holds, opening it either works or throws Error.
TEST(Safetensors, SurvivesDamage) {
  TempDir dir;
  std::string good = tensorFile(toyData(3, 1), {{"a", "b"}});
  std::mt19937 random(5);
  for (int i = 0; i < 600; ++i) {
    std::string bad = good;
    if (i % 3 == 0)
      bad.resize(random() % bad.size());
    for (unsigned j = 0; j < random() % 4 + 1 && !bad.empty(); ++j)
      bad[random() % std::min<size_t>(bad.size(), i % 2 ? 300 : bad.size())] =
          static_cast<char>(random());
    writeFile(dir / "x", bad);
    try {
      SafetensorsFile file(dir / "x");
    } catch (const Error &) {
    }
  }
}

TEST(Safetensors, WritesCanonicalLayout) {
  TempDir dir;
  const float values[] = {1, 2, 3, 4, 5, 6};
  const int64_t swapped[] = {1, 0};
  writeSafetensors(dir / "w",
                   {{"t", {3, 2}, values, swapped}, {"s", {6}, values}},
                   {{"format", "pt"}});
  SafetensorsFile file(dir / "w");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("t")->shape, (Shape{2, 3}));
  float transposed[6], back[6];
  memcpy(transposed, file.find("t")->data, 24);
  EXPECT_THAT(transposed, testing::ElementsAre(1, 3, 5, 2, 4, 6));
  untranspose(transposed, back, {3, 2}, swapped, 0, 6);
  EXPECT_THAT(back, testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(namesIn(dir.path), std::vector<std::string>{"w"});
}

TEST(Safetensors, LeavesNothingWhenWritingFails) {
  TempDir dir;
  const float value = 1;
  EXPECT_THAT(errorOf([&] {
                writeSafetensors(dir / "no/w", {{"t", {1}, &value}}, {});
              }),
              HasSubstr("cannot write '"));
  {
    AtomicFile file(dir / "half");
    file.write("text");
  }
  EXPECT_TRUE(namesIn(dir.path).empty());
}

TEST(Safetensors, WritesIntoWhatIsNoFile) {
  TempDir dir;
  std::string pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  int end = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  writeText(pipe, "text");
  char text[5] = {};
  EXPECT_EQ(read(end, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  close(end);
  EXPECT_EQ(namesIn(dir.path).size(), 1u); // still the pipe
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(Types, ConvertsFloats) {
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x03ff, 0x8000};
  float values[6];
  convertToFloat(MGQ_F16, reinterpret_cast<const std::byte *>(halves), values,
                 6);
  EXPECT_THAT(values, testing::ElementsAre(1.0f, -2.0f, 0x1p-24f, HUGE_VALF,
                                           1023 * 0x1p-24f, -0.0f));
  const uint16_t brains[] = {0x3f80, 0xc040};
  convertToFloat(MGQ_BF16, reinterpret_cast<const std::byte *>(brains), values,
                 2);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -3.0f);
  const double doubles[] = {0.1};
  convertToFloat(MGQ_F64, reinterpret_cast<const std::byte *>(doubles), values,
                 1);
  EXPECT_EQ(values[0], 0.1f);
}

/// What convertFromFloat makes of a number.
static uint16_t narrowed(mgq_type type, float value) {
  uint16_t bits = 0;
  convertFromFloat(type, &value, reinterpret_cast<std::byte *>(&bits), 1);
  return bits;
}

// Ties go to even; what is too large is infinite; subnormals are rounded too.
TEST(Types, RoundsToNarrowFloats) {
  EXPECT_EQ(narrowed(MGQ_BF16, 1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(narrowed(MGQ_BF16, 1 + 0x3p-8f), 0x3f82);
  EXPECT_EQ(narrowed(MGQ_BF16, 1 + 0x1.8p-8f), 0x3f81);
  EXPECT_EQ(narrowed(MGQ_BF16, -3.4e38f), 0xff80);
  EXPECT_EQ(narrowed(MGQ_BF16, 0x1p-133f), 0x0001);
  EXPECT_EQ(narrowed(MGQ_F16, 1 + 0x1p-11f), 0x3c00);
  EXPECT_EQ(narrowed(MGQ_F16, 1 + 0x3p-11f), 0x3c02);
  EXPECT_EQ(narrowed(MGQ_F16, 65519), 0x7bff);
  EXPECT_EQ(narrowed(MGQ_F16, 65520), 0x7c00);
  EXPECT_EQ(narrowed(MGQ_F16, -HUGE_VALF), 0xfc00);
  EXPECT_EQ(narrowed(MGQ_F16, 0x1p-25f), 0x0000);
  EXPECT_EQ(narrowed(MGQ_F16, 0x1.8p-25f), 0x0001);
  EXPECT_EQ(narrowed(MGQ_F16, -0x3p-25f), 0x8002);
  EXPECT_EQ(narrowed(MGQ_F16, 0x1.ffcp-15f + 0x1p-25f), 0x0400);
  EXPECT_EQ(narrowed(MGQ_F16, -0.0f), 0x8000);
}

// Every narrow number comes back, and NaN stays NaN.
TEST(Types, RoundsBackToWhatItWidened) {
  for (mgq_type type : {MGQ_BF16, MGQ_F16})
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      auto narrow = static_cast<uint16_t>(bits);
      float wide;
      convertToFloat(type, reinterpret_cast<const std::byte *>(&narrow), &wide,
                     1);
      uint16_t back = narrowed(type, wide);
      if (wide == wide) {
        ASSERT_EQ(back, narrow) << typeName(type);
        continue;
      }
      convertToFloat(type, reinterpret_cast<const std::byte *>(&back), &wide,
                     1);
      ASSERT_TRUE(wide != wide) << typeName(type) << ' ' << narrow;
    }
}

TEST(Safetensors, WritesNarrowTypes) {
  TempDir dir;
  const float values[] = {1, 2, 3, -4, 5.001f, 6};
  const int64_t swapped[] = {1, 0};
  writeSafetensors(dir / "w",
                   {{"h", {3, 2}, values, swapped, nullptr, MGQ_F16},
                    {"b", {6}, values, nullptr, nullptr, MGQ_BF16}},
                   {});
  SafetensorsFile file(dir / "w");
  EXPECT_EQ(file.find("h")->type, MGQ_F16);
  EXPECT_EQ(file.find("b")->type, MGQ_BF16);
  float wide[6];
  convertToFloat(MGQ_F16, file.find("h")->data, wide, 6);
  EXPECT_THAT(wide, testing::ElementsAre(1, 3, 5, 2, -4, 6));
  convertToFloat(MGQ_BF16, file.find("b")->data, wide, 6);
  EXPECT_THAT(wide, testing::ElementsAre(1, 2, 3, -4, 5, 6));
}

TEST(Types, TransposesThreeAxes) {
  std::vector<float> from(24), to(24), back(24);
  for (int i = 0; i < 24; ++i)
    from[i] = static_cast<float>(i);
  const int64_t permutation[] = {2, 0, 1}; // [2, 3, 4] -> [4, 2, 3]
  transpose(from.data(), to.data(), {2, 3, 4}, permutation);
  EXPECT_EQ(transposedShape({2, 3, 4}, permutation), (Shape{4, 2, 3}));
  EXPECT_EQ(to[1], from[4]); // (0, 0, 1) is (0, 1, 0).
  EXPECT_EQ(to[6], from[1]); // (1, 0, 0) is (0, 0, 1).
  untranspose(to.data(), back.data(), {2, 3, 4}, permutation, 0, 24);
  EXPECT_EQ(back, from);
  // Pieces of the result.
  std::vector<float> piece(7);
  transpose(from.data(), piece.data(), {2, 3, 4}, permutation, 10, 7);
  EXPECT_EQ(piece, std::vector<float>(to.begin() + 10, to.begin() + 17));
  back.assign(24, 0);
  for (int64_t begin = 0; begin < 24; begin += 6)
    untranspose(to.data() + begin, back.data(), {2, 3, 4}, permutation, begin,
                6);
  EXPECT_EQ(back, from);
}
