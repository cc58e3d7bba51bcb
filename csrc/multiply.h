// A matrix product over all threads: cut into pieces as its tuning says.
#pragma once

#include <algorithm>
#include <string>

#include "kernels.h"
#include "thread_pool.h"

namespace headrace {

// What keeps these kernels from using the tuning, or an empty string.
inline std::string TuningProblem(const MatmulTuning& tuning, const Kernels& kernels) {
  const auto out_of = [](const char* name, int value, int low, int high) {
    return std::string(name) + " is " + std::to_string(value) + " but must be between " + std::to_string(low) +
           " and " + std::to_string(high);
  };
  constexpr int kMaxBlockRows = 1 << 16, kMaxPieceBytes = 1 << 26;
  const int max_panels = kernels.max_tile_rows[1] > 0 ? 2 : 1;
  if (tuning.tile_panels < 1 || tuning.tile_panels > max_panels) {
    return out_of("tile_panels", tuning.tile_panels, 1, max_panels);
  }
  const int max_rows = kernels.max_tile_rows[tuning.tile_panels - 1];
  if (tuning.tile_rows < 1 || tuning.tile_rows > max_rows) return out_of("tile_rows", tuning.tile_rows, 1, max_rows);
  if (tuning.block_rows < 1 || tuning.block_rows > kMaxBlockRows) {
    return out_of("block_rows", tuning.block_rows, 1, kMaxBlockRows);
  }
  if (tuning.piece_bytes < 0 || tuning.piece_bytes > kMaxPieceBytes) {
    return out_of("piece_bytes", tuning.piece_bytes, 0, kMaxPieceBytes);
  }
  return {};
}

// Rows of a piece of work. With many rows each thread takes some for itself: then what an operation leaves for a row
// is in the caches of the thread that goes on with it, and weights are read once by each.
inline int RowsPerPiece(const MatmulTask& task, const MatmulTuning& tuning, int num_threads) {
  constexpr int kLeastRows = 64;
  const int rows_each = static_cast<int>(CeilDiv(task.num_rows, num_threads));
  return rows_each < kLeastRows ? tuning.block_rows : std::min(tuning.block_rows, rows_each);
}

inline void Multiply(const Kernels& kernels, const MatmulTask& task, const MatmulTuning& tuning, ThreadPool& pool) {
  const int num_panels = task.weight->num_panels();
  const size_t tile_bytes = tuning.tile_panels * task.weight->panel_bytes();
  const int panels_per_piece =
      tuning.tile_panels * static_cast<int>(std::max<size_t>(1, CeilDiv(tuning.piece_bytes, tile_bytes)));
  const int pieces_per_block = static_cast<int>(CeilDiv(num_panels, panels_per_piece));
  const int block_rows = RowsPerPiece(task, tuning, pool.num_threads());
  const int num_blocks = static_cast<int>(CeilDiv(task.num_rows, block_rows));
  pool.Run(pieces_per_block * num_blocks, [&](int piece, int) {
    const int row_begin = piece / pieces_per_block * block_rows;
    const int row_end = std::min(task.num_rows, row_begin + block_rows);
    const int panel_begin = piece % pieces_per_block * panels_per_piece;
    const int panel_end = std::min(num_panels, panel_begin + panels_per_piece);
    kernels.matmul_panels(task, tuning, panel_begin, panel_end, row_begin, row_end);
  });
}

}  // namespace headrace
