// SiLU of the gate times up, in fixed point with 16 bits behind the point (integer.py: `activated`).
//
// The logistic function is a table of 514 numbers read from the file TABLE, 32 a unit from 0 to 16 and one more, in units
// of 2^-16, with lines between them; beyond 16 it is 1, and of a negative number it is 1 less that of its size.
// One pair a cycle; `out_valid` follows `valid` by seven cycles.
module activate #(
    parameter TABLE = "logistic.hex"
) (
    input  logic               clk,
    input  logic               reset,
    input  logic               valid,
    input  logic signed [31:0] gate,
    input  logic signed [31:0] up,
    output logic               out_valid,
    output logic signed [31:0] out
);
    localparam logic [20:0] END = 21'd16 << 16;
    localparam logic signed [63:0] LIMIT = 64'sh7fff_ffff;

    logic [16:0] table_low[0:513], table_high[0:513];
    initial begin
        $readmemh(TABLE, table_low);
        $readmemh(TABLE, table_high);
    end

    logic [7:1] valid_at;
    logic signed [31:0] gate_at[1:4], up_at[1:5];
    logic [31:0] size;
    logic [20:0] bounded;
    logic [9:0] entry;
    logic [10:0] between_1, between_2;
    logic [16:0] low, high, low_3, sigma;
    logic [31:0] step;
    logic signed [47:0] silu_wide;
    logic signed [63:0] wide;
    logic signed [31:0] silu;

    assign size = gate[31] ? -gate : gate;
    assign bounded = (size > 32'(END)) ? END : size[20:0];
    assign silu_wide = 48'(gate_at[4]) * 48'(signed'({1'b0, sigma})) + 48'sd32768;
    assign out_valid = valid_at[7];

    always_ff @(posedge clk) begin
        valid_at <= reset ? '0 : {valid_at[6:1], valid};

        entry <= bounded[20:11];
        between_1 <= bounded[10:0];
        gate_at[1] <= gate;
        up_at[1] <= up;

        low <= table_low[entry];
        high <= table_high[entry+10'd1];
        between_2 <= between_1;
        gate_at[2] <= gate_at[1];
        up_at[2] <= up_at[1];

        step <= (32'(high) - 32'(low)) * 32'(between_2) + 32'd1024;
        low_3 <= low;
        gate_at[3] <= gate_at[2];
        up_at[3] <= up_at[2];

        sigma <= gate_at[3][31] ? 17'h10000 - low_3 - 17'(step >> 11) : low_3 + 17'(step >> 11);
        gate_at[4] <= gate_at[3];
        up_at[4] <= up_at[3];

        silu <= 32'(silu_wide >>> 16);
        up_at[5] <= up_at[4];

        wide <= (64'(silu) * 64'(up_at[5]) + 64'sd32768) >>> 16;

        if (wide > LIMIT) out <= 32'sh7fff_ffff;
        else if (wide < -LIMIT) out <= -32'sh7fff_ffff;
        else out <= wide[31:0];
    end
endmodule
