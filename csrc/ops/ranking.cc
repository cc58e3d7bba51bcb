#include "ranking.h"

#include <algorithm>
#include <bit>

namespace headrace {
namespace {

// A logit that at least `count` tokens reach; count <= row.size.
float ThresholdFor(const PeakedRow& row, int count, float* sorted_maxima) {
  const int num_blocks = row.num_blocks();
  if (count > num_blocks) return *std::min_element(row.logits, row.logits + row.size);
  std::copy_n(row.maxima, num_blocks, sorted_maxima);
  std::nth_element(sorted_maxima, sorted_maxima + count - 1, sorted_maxima + num_blocks, std::greater<>());
  return sorted_maxima[count - 1];
}

// Keys of all tokens that reach `threshold`; returns their number.
size_t GatherKeys(const PeakedRow& row, float threshold, uint64_t* keys) {
  size_t count = 0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (row.maxima[block] < threshold) continue;
    const int begin = block * kTokenBlock, end = begin + row.block_size(block);
    for (int token = begin; token < end; ++token) {
      if (row.logits[token] >= threshold) keys[count++] = RankKey(row.logits[token], token);
    }
  }
  return count;
}

}  // namespace

uint64_t RankKey(float logit, int token_id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 equals 0, so it must have its bits
  const uint32_t falling = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
  return uint64_t{falling} << 32 | static_cast<uint32_t>(token_id);
}

float LogitOfKey(uint64_t key) {
  const uint32_t falling = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(falling & 0x80000000u ? falling : ~falling & 0x7fffffffu);
}

std::span<uint64_t> FirstRanked(const PeakedRow& row, int count, SamplingScratch& scratch) {
  count = std::min(count, row.size);
  uint64_t* first = scratch.keys.get();
  uint64_t* last = first + GatherKeys(row, ThresholdFor(row, count, scratch.sorted_maxima.get()), first);
  if (last - first > count) {
    std::nth_element(first, first + count - 1, last);
    last = first + count;
  }
  std::sort(first, last);
  return {first, last};
}

int FirstToken(const PeakedRow& row) {
  const auto block = std::find(row.maxima, row.maxima + row.num_blocks(), row.peak) - row.maxima;
  const float* begin = row.logits + block * kTokenBlock;
  return static_cast<int>(std::find(begin, row.logits + row.size, row.peak) - row.logits);
}

}  // namespace headrace
